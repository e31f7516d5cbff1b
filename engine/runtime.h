#pragma once
// What the engine keeps per device. Internal: users see device.h and random.h.

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>

#include "../kernels/backend.h"
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
std::unique_ptr<Allocator> make_cpu_allocator(Device device);
bool poison_memory();

/// The long-lived thread of a device. It starts with the first job.
class Worker {
 public:
  explicit Worker(Device device) : device_(device) {}
  /// Runs `job` after those submitted before. `job` must not throw.
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
  const kernels::Backend* backend;
  std::unique_ptr<Allocator> allocator;
  Worker worker;
  std::mutex generator_mutex;
  GeneratorState generator;
};

/// The state of a device, made at first use and never destroyed. DeviceError if there is no such device.
DeviceState& device_state(Device device);
/// Whether a CPU device has a state yet.
bool is_used(Device device);

inline const kernels::Backend& backend(Device device) { return *device_state(device).backend; }
/// The stream of the calling thread on a device.
kernels::Stream stream_for(Device device);

}  // namespace tandem
