#include "device.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <charconv>
#include <cstdlib>
#include <thread>

#include "context.h"
#include "error.h"
#include "runtime.h"

namespace tandem {
namespace {

constexpr int kMaxDevices = 64;  // of a kind

int cores() { return static_cast<int>(std::max(1U, std::thread::hardware_concurrency())); }

std::atomic<int>& cpu_count() {
  static std::atomic<int> count{std::clamp(cores(), 4, kMaxDevices)};
  return count;
}

int gpus() {
  static const int count = kernels::cuda::gpu_count();
  return count;
}

std::atomic<int>& per_gpu() {
  static std::atomic<int> count{[] {
    const char* text = std::getenv("TANDEM_DEVICES_PER_GPU");
    return text ? std::clamp(std::atoi(text), 1, kMaxDevices) : 1;
  }()};
  return count;
}

std::mutex states_mutex;
std::array<std::array<std::atomic<DeviceState*>, kMaxDevices>, 2> states;

std::atomic<DeviceState*>& slot_of(Device device) {
  return states[static_cast<std::size_t>(device.type)][static_cast<std::size_t>(device.index)];
}

const char* name_of(DeviceType type) { return type == DeviceType::CPU ? "cpu" : "cuda"; }

void check_exists(DeviceType type, int index) {
  const int count = device_count(type);
  if (index >= 0 && index < count) return;
  const char* kind = name_of(type);
  if (count == 0) throw DeviceError(fmt::format("there is no {}:{}: {}", kind, index, kernels::cuda::why_no_gpus()));
  throw DeviceError(
      fmt::format("there is no {}:{}: the {} devices are {}:0 to {}:{}", kind, index, kind, kind, kind, count - 1));
}

}  // namespace

std::string str(Device device) { return fmt::format("{}:{}", name_of(device.type), device.index); }

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
  check_exists(type, index);
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

Device get_default_device() { return context().default_device; }

void set_default_device(Device device) {
  check_exists(device.type, device.index);
  context().default_device = device;
}

int device_count(DeviceType type) {
  return type == DeviceType::CPU ? cpu_count().load(std::memory_order_relaxed)
                                 : std::min(gpus() * per_gpu().load(std::memory_order_relaxed), kMaxDevices);
}

void set_cpu_device_count(int count) {
  const std::scoped_lock lock(states_mutex);
  int used = 1;
  for (int i = 0; i < kMaxDevices; ++i) {
    if (slot_of(cpu(i)).load()) used = i + 1;
  }
  if (count < used || count > kMaxDevices) {
    throw ValueError(fmt::format("set_cpu_device_count: wanted {} to {}, got {}", used, kMaxDevices, count));
  }
  cpu_count() = count;
}

void set_devices_per_gpu(int count) {
  const std::scoped_lock lock(states_mutex);
  if (count < 1 || count > kMaxDevices) {
    throw ValueError(fmt::format("set_devices_per_gpu: wanted 1 to {}, got {}", kMaxDevices, count));
  }
  for (int i = 0; i < kMaxDevices; ++i) {
    if (slot_of(cuda(i)).load()) {
      throw DeviceError(fmt::format("set_devices_per_gpu: {} is in use; call this before", str(cuda(i))));
    }
  }
  per_gpu() = count;
}

std::string get_device_name(Device device) {
  check_exists(device.type, device.index);
  return device.type == DeviceType::CPU ? "CPU" : kernels::cuda::gpu_name(gpu_of(device));
}

int gpu_of(Device device) { return device.index / per_gpu().load(); }

DeviceState& device_state(Device device) {
  check_exists(device.type, device.index);
  std::atomic<DeviceState*>& slot = slot_of(device);
  if (DeviceState* state = slot.load(std::memory_order_acquire)) return *state;
  const std::scoped_lock lock(states_mutex);
  if (!slot.load()) slot.store(new DeviceState(device), std::memory_order_release);
  return *slot.load();
}

std::vector<Device> all_devices() {
  std::vector<Device> all;
  for (const DeviceType type : {DeviceType::CPU, DeviceType::CUDA}) {
    for (int i = 0; i < device_count(type); ++i) all.push_back({type, static_cast<std::int16_t>(i)});
  }
  return all;
}

std::vector<Device> used_devices() {
  std::vector<Device> used = all_devices();
  std::erase_if(used, [](Device device) { return !slot_of(device).load(); });
  return used;
}

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

void set_allow_tf32(bool on) { kernels::cuda::allow_tf32 = on; }
bool allow_tf32() { return kernels::cuda::allow_tf32; }

kernels::Stream stream_for(Device device) {
  return {device.index, num_threads(), {}, device.type == DeviceType::CPU ? nullptr : device_state(device).queue};
}

}  // namespace tandem
