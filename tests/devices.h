#pragma once
// Tests that run on every kind of device.

#include <cstdint>
#include <vector>

#include "../engine/context.h"
#include "../engine/device.h"
#include "catch.h"

namespace tandem::test {

/// The kinds of which there are four devices, as many as tests use: TANDEM_DEVICES_PER_GPU=4 makes them from one GPU.
inline std::vector<DeviceType> device_kinds() {
  if (device_count(DeviceType::CUDA) < 4) return {DeviceType::CPU};
  return {DeviceType::CPU, DeviceType::CUDA};
}

/// The devices of one kind. While it lives, new tensors of this thread are made on the first.
class Devices {
 public:
  explicit Devices(DeviceType type) : type_(type), guard_((*this)(0)) {}
  Device operator()(int i) const { return {type_, static_cast<std::int16_t>(i)}; }
  std::vector<Device> first(int count) const {
    std::vector<Device> devices;
    for (int i = 0; i < count; ++i) devices.push_back((*this)(i));
    return devices;
  }
  bool are_cpus() const { return type_ == DeviceType::CPU; }

 private:
  DeviceType type_;
  DefaultDeviceGuard guard_;
};

}  // namespace tandem::test

/// First line of a test case: runs it once for every kind of device, which `name` are then.
#define ON_EVERY_DEVICE(name)                                                           \
  const tandem::test::Devices name(GENERATE(from_range(tandem::test::device_kinds()))); \
  INFO("on " << str(name(0)))
