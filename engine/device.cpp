#include "device.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <thread>

#include "context.h"
#include "error.h"
#include "runtime.h"

namespace tandem {
namespace {

constexpr int kMaxCpuDevices = 64;

int cores() { return static_cast<int>(std::max(1U, std::thread::hardware_concurrency())); }

std::atomic<int>& cpu_count() {
  static std::atomic<int> count{std::clamp(cores(), 4, kMaxCpuDevices)};
  return count;
}

std::mutex states_mutex;
std::atomic<DeviceState*> cpu_states[kMaxCpuDevices];

}  // namespace

std::string str(Device device) {
  return fmt::format("{}:{}", device.type == DeviceType::CPU ? "cpu" : "cuda", device.index);
}

std::string str(const std::vector<Device>& devices) {
  std::string out;
  for (Device d : devices) out += (out.empty() ? "" : ",") + str(d);
  return out;
}

Device parse_device(std::string_view text) {
  const std::size_t colon = text.find(':');
  const std::string_view kind = text.substr(0, colon);
  int index = 0;
  bool good = kind == "cpu" || kind == "cuda";
  if (good && colon != std::string_view::npos) {
    const char* end = text.data() + text.size();
    const auto [stop, error] = std::from_chars(text.data() + colon + 1, end, index);
    good = error == std::errc() && stop == end && text[colon + 1] != '-';
  }
  if (!good) throw ValueError(fmt::format("'{}' is not a device: wanted cpu, cpu:N or cuda:N", text));
  const DeviceType type = kind == "cpu" ? DeviceType::CPU : DeviceType::CUDA;
  const int count = device_count(type);
  if (index >= count) {
    throw DeviceError(count == 0 ? fmt::format("there is no {}:{}: this build has no {} devices", kind, index, kind)
                                 : fmt::format("there is no {}:{}: the {} devices are {}:0 to {}:{}", kind, index, kind,
                                               kind, kind, count - 1));
  }
  return {type, static_cast<std::int16_t>(index)};
}

std::vector<Device> parse_devices(std::string_view text) {
  std::vector<Device> devices;
  while (true) {
    const std::size_t comma = text.find(',');
    devices.push_back(parse_device(text.substr(0, comma)));
    if (comma == std::string_view::npos) return devices;
    text.remove_prefix(comma + 1);
  }
}

int device_count(DeviceType type) { return type == DeviceType::CPU ? cpu_count().load() : 0; }

void set_cpu_device_count(int count) {
  const std::scoped_lock lock(states_mutex);
  int used = 1;
  for (int i = 0; i < kMaxCpuDevices; ++i) {
    if (cpu_states[i].load()) used = i + 1;
  }
  if (count < used || count > kMaxCpuDevices) {
    throw ValueError(fmt::format("set_cpu_device_count: wanted {} to {}, got {}", used, kMaxCpuDevices, count));
  }
  cpu_count() = count;
}

DeviceState& device_state(Device device) {
  if (device.type != DeviceType::CPU || device.index < 0 ||
      device.index >= cpu_count().load(std::memory_order_relaxed)) {
    throw DeviceError(
        fmt::format("there is no device {}: this build has cpu:0 to cpu:{}", str(device), cpu_count() - 1));
  }
  std::atomic<DeviceState*>& slot = cpu_states[device.index];
  if (DeviceState* state = slot.load(std::memory_order_acquire)) return *state;
  const std::scoped_lock lock(states_mutex);
  if (!slot.load()) slot.store(new DeviceState(device), std::memory_order_release);
  return *slot.load();
}

bool is_used(Device device) { return cpu_states[device.index].load() != nullptr; }

MemoryStats memory_stats(Device device) { return device_state(device).allocator->stats(); }
void reset_peak_memory(Device device) { device_state(device).allocator->reset_peak(); }
void empty_cache(Device device) { device_state(device).allocator->empty_cache(); }

void set_num_threads(int count) {
  if (count < 1) throw ValueError(fmt::format("set_num_threads: wanted at least 1, got {}", count));
  context().threads = count;
}

int num_threads() {
  static const int all = cores();
  const int set = context().threads;
  return set > 0 ? set : all;
}

kernels::Stream stream_for(Device device) { return {device.index, num_threads(), {}}; }

}  // namespace tandem
