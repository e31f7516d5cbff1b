#include "data_parallel.h"

#include <fmt/format.h>

#include "../engine/runtime.h"

namespace tandem::parallel {

std::vector<Device> default_devices(const nn::Module& module) {
  const std::vector<Tensor> tensors = tensors_of(module);
  const DeviceType type = tensors.empty() ? DeviceType::CPU : tensors[0].device().type;
  std::vector<Device> devices;
  for (int i = 0; i < device_count(type); ++i) devices.push_back({type, static_cast<std::int16_t>(i)});
  return devices;
}

void check_devices(const std::vector<Device>& devices, Device output_device) {
  if (devices.empty()) {
    throw ValueError(fmt::format("DataParallel: the list of devices is empty; there are cpu:0 to cpu:{}",
                                 device_count(DeviceType::CPU) - 1));
  }
  for (Device d : devices) device_state(d);
  device_state(output_device);
}

}  // namespace tandem::parallel
