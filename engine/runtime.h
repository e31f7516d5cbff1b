#pragma once
// What the engine keeps per device. Internal: users see device.h and random.h.

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "../kernels/cuda.h"
#include "device.h"
#include "random.h"

namespace tandem {

/// Caching allocator of one device. Freed blocks are kept by size class and handed out again. Thread-safe.
class Allocator {
 public:
  virtual ~Allocator() = default;
  /// At least `bytes`, aligned to 64. MemoryError if the system has none even after the cache was emptied.
  virtual std::byte* allocate(std::size_t bytes) = 0;
  virtual void free(std::byte* data, std::size_t bytes) noexcept = 0;
  virtual void empty_cache() = 0;
  virtual MemoryStats stats() const = 0;
  virtual void reset_peak() = 0;
};
/// Where an allocator gets its blocks.
class MemorySource {
 public:
  virtual ~MemorySource() = default;
  /// Aligned to 64; null if there is none left.
  virtual std::byte* allocate(std::size_t bytes) = 0;
  virtual void free(std::byte* data) noexcept = 0;
  /// Fills with 0xff bytes, after what was queued so far.
  virtual void poison(std::byte* data, std::size_t bytes) noexcept = 0;
};
/// `queue` is null for CPU devices.
std::unique_ptr<Allocator> make_allocator(Device device, kernels::cuda::Queue* queue);
bool poison_memory();

/// The long-lived thread of a device. It starts with the first job.
class Worker {
 public:
  explicit Worker(Device device) : device_(device) {}
  /// Runs `job` after those submitted before. `job` must not throw. Error in a process that was forked after a worker
  /// had started: threads do not survive that, and the job would wait forever.
  void submit(std::function<void()> job);
  /// The device whose worker the calling thread is, or null.
  static const Device* current();

 private:
  void loop();

  Device device_;
  std::mutex mutex_;
  std::condition_variable ready_;
  std::deque<std::function<void()>> jobs_;
  bool started_ = false;
};

struct DeviceState {
  explicit DeviceState(Device d);

  Device device;
  kernels::cuda::Queue* queue;  ///< null for a CPU device
  const kernels::Backend* backend;
  std::unique_ptr<Allocator> allocator;
  Worker worker;
  std::mutex generator_mutex;
  GeneratorState generator;
};

/// The state of a device, made at first use and never destroyed. DeviceError if there is no such device.
DeviceState& device_state(Device device);
/// The GPU that a CUDA device is, or is a part of.
int gpu_of(Device device);
/// The devices of every kind, CPU devices first.
std::vector<Device> all_devices();
/// Those that have a state.
std::vector<Device> used_devices();

inline const kernels::Backend& backend(Device device) { return *device_state(device).backend; }
/// The stream of the calling thread on a device.
kernels::Stream stream_for(Device device);

/// Copies bytes between the memories of any two devices, after what was queued before on both and before what is queued
/// later. CPU memory has been read or written when the call returns.
void copy_bytes(Device to_device, std::byte* to, Device from_device, const std::byte* from, std::size_t bytes);
[[noreturn]] void throw_index_error(const char* op, const kernels::IndexFault& fault);
/// Throws the IndexError that a kernel of a CUDA device met, as far as they have run.
void check_index_faults(Device device);

}  // namespace tandem
