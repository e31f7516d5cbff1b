#pragma once
// Devices: a memory, a stream of work and a worker thread each.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tandem {

enum class DeviceType : std::uint8_t { CPU, CUDA };

/// A device by kind and number. Logical CPU devices cpu:0, cpu:1, ... are separate devices in every respect: tensors
/// of two of them do not mix without a copy.
struct Device {
  DeviceType type = DeviceType::CPU;
  std::int16_t index = 0;

  friend constexpr bool operator==(Device, Device) = default;
  friend constexpr auto operator<=>(Device, Device) = default;
};

constexpr Device cpu(int index = 0) { return {DeviceType::CPU, static_cast<std::int16_t>(index)}; }
constexpr Device cuda(int index = 0) { return {DeviceType::CUDA, static_cast<std::int16_t>(index)}; }

/// "cpu:0".
std::string str(Device device);
std::string str(const std::vector<Device>& devices);

/// Reads "cpu", "cpu:1", "cuda:0". Throws ValueError for other texts, DeviceError for devices that do not exist.
Device parse_device(std::string_view text);
/// Reads a list: "cpu:0,cpu:1".
std::vector<Device> parse_devices(std::string_view text);

/// Where tensors are made, by functions that are told no device, in the calling thread; cpu:0 at first.
Device get_default_device();
/// Throws DeviceError if there is no such device. See also DefaultDeviceGuard.
void set_default_device(Device device);

/// How many devices of a kind there are, at most 64. CPU: the number of cores, at least 4, unless set. CUDA: the GPUs,
/// simulated ones where the build has those, times the devices per GPU; 0 where there is no driver.
int device_count(DeviceType type);
/// Sets the number of logical CPU devices, 1 to 64. Throws ValueError outside that, or below a device in use.
void set_cpu_device_count(int count);
/// Splits each GPU into several devices, with streams and memory of their own: cuda:0 to cuda:count-1 are then on the
/// first GPU. At first 1, or what TANDEM_DEVICES_PER_GPU says. DeviceError when a CUDA device is in use.
void set_devices_per_gpu(int count);
/// What the device is: "NVIDIA H200", as CUDA calls the GPU, or "CPU". DeviceError if there is no such device.
std::string get_device_name(Device device);

/// Operations of CUDA devices are queued, and run later. Waits for all that a device was given; nothing to do for a CPU
/// device. Throws IndexError if a kernel met an index out of range, CudaError if the device failed. Reading elements
/// (item(), to_vector(), copies to a CPU device) does the same.
void synchronize(Device device);

/// Whether CUDA devices may round the factors of float32 matrix products and convolutions to TF32, with 10 bits of
/// mantissa. Off at first.
void set_allow_tf32(bool on);
bool allow_tf32();

/// Bytes of one device's memory.
struct MemoryStats {
  std::size_t allocated = 0;  ///< held by tensors
  std::size_t reserved = 0;   ///< held by tensors or by the cache
  std::size_t peak = 0;       ///< highest `allocated` since the last reset_peak_memory
  std::uint64_t allocations = 0;
};
MemoryStats memory_stats(Device device);
void reset_peak_memory(Device device);
/// Returns the cached blocks of a device to the system.
void empty_cache(Device device);
/// In poison mode every fresh and every freed block is filled with 0xff bytes: NaN in floating dtypes.
void set_poison_memory(bool on);

/// How many threads one operation of the calling thread may use. Default: the number of cores; DataParallel's workers
/// get an equal share each. 1 <= count.
void set_num_threads(int count);
int num_threads();

}  // namespace tandem
