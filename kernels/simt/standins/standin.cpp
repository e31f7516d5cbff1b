#include "standin.h"

#include <cstdint>
#include <optional>
#include <utility>

#include "../enqueue.h"

namespace tandem::simt {
namespace {

std::string on_device(int device) { return "device " + std::to_string(device); }

/// The work, unless its memory has been freed by the time its turn comes.
std::function<cudaError_t()> checked(const char* name, const std::vector<Bytes>& reads,
                                     const std::vector<Bytes>& writes, std::function<void()> work) {
  std::vector<Bytes> all = reads;
  all.insert(all.end(), writes.begin(), writes.end());
  return [name, all = std::move(all), work = std::move(work)] {
    for (const Bytes& bytes : all) {
      if (bytes.count == 0 || device_of(bytes.data) < 0 || find_allocation(bytes.data)) continue;
      report(std::string(name) + " uses " + describe_address(bytes.data));
      return cudaErrorIllegalAddress;
    }
    work();
    return cudaSuccess;
  };
}

}  // namespace

void report_refusal(const char* function, const std::string& why) {
  report(std::string(function) + " refused: " + why);
}

std::string pointer_fault(const char* name, const void* data, std::size_t bytes, std::size_t alignment, int device) {
  if (bytes == 0) return {};
  const std::string what = name;
  if (data == nullptr) return what + " is null";
  if (reinterpret_cast<std::uintptr_t>(data) % alignment != 0) {
    return what + " is not aligned to " + std::to_string(alignment) + " bytes";
  }
  const std::optional<Allocation> allocation = find_allocation(data);
  if (!allocation) return what + " is not in device memory";
  if (allocation->device != device) {
    return what + " is on " + on_device(allocation->device) + ", not on " + on_device(device);
  }
  const auto offset = static_cast<std::size_t>(static_cast<const char*>(data) - allocation->data);
  if (offset + bytes > allocation->bytes) {
    return what + " is " + std::to_string(bytes) + " bytes, " + std::to_string(offset + bytes - allocation->bytes) +
           " of which are past the end of its allocation";
  }
  return {};
}

std::string stream_fault(cudaStream_t stream, int device) {
  int found = 0;
  if (cudaStreamGetDevice(stream, &found) != cudaSuccess) return "no such stream";
  return found == device ? "" : "the stream is of " + on_device(found) + ", not of " + on_device(device);
}

std::string current_device_fault(int device) {
  int current = 0;
  if (cudaGetDevice(&current) != cudaSuccess) return "no current device";
  return current == device ? "" : on_device(current) + " is current, the handle is of " + on_device(device);
}

std::string overlap_fault(const char* name, Bytes bytes, const char* other_name, Bytes other) {
  const auto begin = reinterpret_cast<std::uintptr_t>(bytes.data), from = reinterpret_cast<std::uintptr_t>(other.data);
  if (bytes.count == 0 || other.count == 0 || begin + bytes.count <= from || from + other.count <= begin) return {};
  return std::string(name) + " overlaps " + other_name;
}

bool is_device_memory(const void* pointer) { return find_allocation(pointer).has_value(); }

cudaError_t queue(cudaStream_t stream, const char* name, const std::vector<Bytes>& reads,
                  const std::vector<Bytes>& writes, std::function<void()> work) {
  return enqueue(stream, checked(name, reads, writes, std::move(work)));
}

cudaError_t queue_meeting(cudaStream_t stream, const char* name, const std::vector<Bytes>& reads,
                          const std::vector<Bytes>& writes, std::function<void()> arrive,
                          std::function<bool()> may_go) {
  return enqueue_meeting(stream, checked(name, reads, writes, std::move(arrive)), std::move(may_go));
}

}  // namespace tandem::simt
