#pragma once
// What the stand-ins for libraries have in common: handles, the checks of arguments, and work on streams.

#include <cuda_runtime_api.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

namespace tandem::simt {

/// The handles that a library has given out. Any thread.
template <class T>
class Handles {
 public:
  T* make() {
    auto handle = std::make_unique<T>();
    T* address = handle.get();
    const std::lock_guard lock(mutex_);
    live_.emplace(address, std::move(handle));
    return address;
  }
  bool has(const T* handle) const {
    const std::lock_guard lock(mutex_);
    return live_.contains(handle);
  }
  bool destroy(const T* handle) {
    const std::lock_guard lock(mutex_);
    return live_.erase(handle) == 1;
  }

 private:
  mutable std::mutex mutex_;
  std::unordered_map<const T*, std::unique_ptr<T>> live_;
};

/// `lines` times `count` bytes, `pitch` bytes apart.
struct Bytes {
  const void* data;
  std::size_t count;
  std::size_t pitch = 0, lines = 1;
};

/// Puts into the simulator's report that a call was refused.
void report_refusal(const char* function, const std::string& why);

// What is wrong with an argument, or nothing.

/// `name` should be `bytes` bytes inside one allocation of `device`, aligned. Nothing is wrong with 0 bytes anywhere.
std::string pointer_fault(const char* name, const void* data, std::size_t bytes, std::size_t alignment, int device);
std::string stream_fault(cudaStream_t stream, int device);
std::string current_device_fault(int device);

std::string overlap_fault(const char* name, Bytes bytes, const char* other_name, Bytes other);

bool is_device_memory(const void* pointer);

struct Crossing;

/// Queues work that reads and writes these bytes of the stream's device.
cudaError_t queue(cudaStream_t stream, const char* name, const std::vector<Bytes>& reads,
                  const std::vector<Bytes>& writes, std::function<void()> work);

/// The same for work that meets others: runs `arrive`, which may touch any device, and holds the stream until `may_go`.
/// `order` belongs to all that meet.
cudaError_t queue_meeting(cudaStream_t stream, const char* name, std::shared_ptr<Crossing> order,
                          const std::vector<Bytes>& reads, const std::vector<Bytes>& writes,
                          std::function<void()> arrive, std::function<bool()> may_go);
/// Streams that are held look again whether they may go on.
void wake();

}  // namespace tandem::simt
