#include "data_parallel.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "../engine/runtime.h"

namespace tandem::parallel {

namespace {

std::string range_of(DeviceType type) {
  const int count = device_count(type);
  return fmt::format("{} to {}", str(Device{type, 0}), str(Device{type, static_cast<std::int16_t>(count - 1)}));
}

}  // namespace

std::vector<Device> default_devices(const nn::Module& module) {
  const std::vector<Tensor> tensors = tensors_of(module);
  const DeviceType type = tensors.empty() ? DeviceType::CPU : tensors[0].device().type;
  std::vector<Device> devices;
  for (int i = 0; i < device_count(type); ++i) devices.push_back({type, static_cast<std::int16_t>(i)});
  return devices;
}

void check_devices(const std::vector<Device>& devices, Device output_device) {
  if (devices.empty()) {
    std::string text = "DataParallel: the list of devices is empty; there are " + range_of(DeviceType::CPU);
    if (device_count(DeviceType::CUDA) > 0) text += " and " + range_of(DeviceType::CUDA);
    throw ValueError(text);
  }
  for (std::size_t i = 0; i < devices.size(); ++i) {
    device_state(devices[i]);
    if (std::find(devices.begin(), devices.begin() + static_cast<std::ptrdiff_t>(i), devices[i]) !=
        devices.begin() + static_cast<std::ptrdiff_t>(i)) {
      throw ValueError(fmt::format("DataParallel: {} is listed twice in {}; there are {}", str(devices[i]),
                                   str(devices), range_of(devices[i].type)));
    }
  }
  device_state(output_device);
}

void check_options(const DataParallelOptions& options) {
  if (options.same_random_numbers && options.dim != 0) {
    throw ValueError(
        fmt::format("DataParallel: same_random_numbers wants the batch along dimension 0, got dim = {}", options.dim));
  }
  if (options.bucket_bytes < 1) {
    throw ValueError(fmt::format("DataParallel: bucket_bytes must be at least 1, got {}", options.bucket_bytes));
  }
}

SharedDraws::SharedDraws(bool on, Device home, const std::vector<std::int64_t>& rows) {
  if (!on) return;
  const GeneratorState state = generator_state(home);
  const std::int64_t total = std::accumulate(rows.begin(), rows.end(), std::int64_t{0});
  std::int64_t first = 0;
  for (const std::int64_t count : rows) {
    ranges_.push_back({home, state, first, count, total});
    first += count;
  }
}

SharedDraws::~SharedDraws() {
  if (!ranges_.empty()) set_generator_state(ranges_[0].home, ranges_[0].generator);
}

ContextGuard SharedDraws::enter(std::size_t i) {
  Context own = context();
  if (!ranges_.empty()) own.samples = &ranges_[i];
  return ContextGuard(own);
}

void check_outermost(const char* what) {
  if (!inside_replica()) return;
  throw AutogradError(
      fmt::format("{}: called inside replica {}: replicas do not have replicas; use the inner module itself", what,
                  current_replica().index));
}

std::string explain_call(const nn::Module& module, const NamedTensors& arguments, const std::vector<Device>& devices,
                         const DataParallelOptions& options, const Transport& transport, const ReplicaStore& store) {
  check_home(module, devices[0]);
  const ScatterPlan plan = plan_scatter(arguments, devices, options.dim, options.split);
  std::string text = fmt::format("DataParallel of {} on {}: {} of {} devices, results on {}\n", module.type_name(),
                                 str(devices), plan.devices.size(), devices.size(), str(*options.output_device));
  std::int64_t start = 0;
  for (std::size_t i = 0; i < plan.devices.size(); ++i) {
    std::int64_t bytes = 0;
    std::string shapes;
    for (const auto& [path, t] : arguments) {
      if (!t.defined()) continue;
      Shape part = t.sizes();
      if (t.dim() > 0) part[static_cast<int>(options.dim < 0 ? options.dim + t.dim() : options.dim)] = plan.rows[i];
      if (t.device() != plan.devices[i]) bytes += part.numel() * static_cast<std::int64_t>(size_of(t.dtype()));
      shapes += fmt::format("{}{} {} {}", shapes.empty() ? "" : ", ", path, name_of(t.dtype()), str(part));
    }
    text += fmt::format("  {:<8} rows {} to {}: {}; {} bytes to copy\n", str(plan.devices[i]), start,
                        start + plan.rows[i], shapes.empty() ? "no tensors" : shapes, bytes);
    start += plan.rows[i];
  }
  const std::vector<BucketPlan> buckets = store.explain(tensors_of(module), plan.devices.size());
  text += fmt::format("parameters and buffers: {} buckets, by {}\n", buckets.size(), transport.description());
  const char* const reduced = store.is_synchronized() ? "gradients summed on every device" : "gradients reduced";
  for (std::size_t b = 0; b < buckets.size(); ++b) {
    text += fmt::format("  bucket {}: {} tensors, {} {} elements, {}; {} bytes to copy\n", b, buckets[b].tensors,
                        buckets[b].elements, name_of(buckets[b].dtype),
                        buckets[b].requires_grad ? reduced : "no gradients", buckets[b].bytes_to_copy);
  }
  return text;
}

}  // namespace tandem::parallel
