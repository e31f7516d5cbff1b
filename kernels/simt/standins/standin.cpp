#include "standin.h"

#include <cstdint>
#include <optional>
#include <utility>

#include "../clocks.h"
#include "../enqueue.h"
#include "../options.h"
#include "../shadow.h"

namespace tandem::simt {
namespace {

std::string on_device(int device) { return "device " + std::to_string(device); }

/// What is wrong with the use of this memory when the turn has come: freed, not written, used by another stream.
std::string fault_of(const char* name, const Bytes& bytes, bool write) {
  if (bytes.count == 0 || bytes.lines == 0 || device_of(bytes.data) < 0) return {};
  if (!find_allocation(bytes.data)) return std::string(name) + " uses " + describe_address(bytes.data);
  for (std::size_t i = 0; i < bytes.lines; ++i) {
    const char* line = static_cast<const char*>(bytes.data) + i * bytes.pitch;
    if (std::string fault = use_range(line, bytes.count, write); !fault.empty()) return fault;
    if (write || !options().check.unwritten) continue;
    if (const std::size_t first = find_unwritten(line, bytes.count); first != bytes.count) {
      return std::string(name) + " reads memory that nothing has written: " + describe_address(line + first);
    }
  }
  return {};
}

/// The work, unless something is wrong with its memory by the time its turn comes.
std::function<cudaError_t()> checked(const char* name, const std::vector<Bytes>& reads,
                                     const std::vector<Bytes>& writes, std::function<void()> work) {
  return [=, work = std::move(work)] {
    std::string fault;
    for (const Bytes& bytes : reads) {
      if (fault.empty()) fault = fault_of(name, bytes, false);
    }
    for (const Bytes& bytes : writes) {
      if (fault.empty()) fault = fault_of(name, bytes, true);
    }
    if (!fault.empty()) {
      report(fault);
      return cudaErrorIllegalAddress;
    }
    work();
    for (const Bytes& bytes : writes) {
      for (std::size_t i = 0; i < bytes.lines; ++i) {
        mark_written(static_cast<const char*>(bytes.data) + i * bytes.pitch, bytes.count);
      }
    }
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
  return enqueue(stream, name, checked(name, reads, writes, std::move(work)));
}

cudaError_t queue_meeting(cudaStream_t stream, const char* name, std::shared_ptr<Crossing> order,
                          const std::vector<Bytes>& reads, const std::vector<Bytes>& writes,
                          std::function<void()> arrive, std::function<bool()> may_go) {
  return enqueue_meeting(stream, name, std::move(order), checked(name, reads, writes, std::move(arrive)),
                         std::move(may_go));
}

}  // namespace tandem::simt
