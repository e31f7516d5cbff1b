// CUDA's functions for memory.

#include <cuda_runtime.h>

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "clocks.h"
#include "control.h"
#include "enqueue.h"
#include "failures.h"
#include "fault.h"
#include "leaks.h"
#include "memory.h"
#include "options.h"
#include "runtime.h"
#include "shadow.h"

namespace tandem::simt {
namespace {

std::atomic<bool> garbling{false};

std::mutex pinned_mutex;
std::map<const char*, std::size_t> pinned;

bool is_pinned(const void* address) {
  const std::scoped_lock lock(pinned_mutex);
  const auto* at = static_cast<const char*>(address);
  const auto after = pinned.upper_bound(at);
  return after != pinned.begin() && at < std::prev(after)->first + std::prev(after)->second;
}

/// Host memory, or `bytes` inside one allocation of a device.
bool is_valid(const void* address, std::size_t bytes) {
  if (device_of(address) < 0) return address != nullptr;
  const auto found = find_allocation(address);
  return found && static_cast<const char*>(address) + bytes <= found->data + found->bytes;
}

bool fits(cudaMemcpyKind kind, bool to_device, bool from_device) {
  switch (kind) {
    case cudaMemcpyHostToHost: return !to_device && !from_device;
    case cudaMemcpyHostToDevice: return to_device && !from_device;
    case cudaMemcpyDeviceToHost: return !to_device && from_device;
    case cudaMemcpyDeviceToDevice: return to_device && from_device;
    default: return true;
  }
}

cudaError_t refuse(const std::string& fault) {
  report(fault);
  return cudaErrorIllegalAddress;
}

/// What a copy does when its turn comes.
cudaError_t checked_copy(void* to, const void* from, std::size_t bytes) {
  std::string fault = use_range(from, bytes, false);
  if (fault.empty()) fault = use_range(to, bytes, true);
  if (!fault.empty()) return refuse(fault);
  if (options().check.unwritten && device_of(to) < 0) {
    const std::size_t first = find_unwritten(from, bytes);
    if (first != bytes) {
      return refuse("a copy to the host of memory that nothing has written: " +
                    describe_address(static_cast<const char*>(from) + first));
    }
  }
  std::memmove(to, from, bytes);
  const int target = device_of(to), source = device_of(from);
  if (garbling && target >= 0 && source >= 0 && target != source) static_cast<char*>(to)[bytes / 2] ^= 1;
  copy_marks(to, from, bytes);
  return cudaSuccess;
}

cudaError_t copy(const char* name, void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind,
                 cudaStream_t stream, bool wait) {
  if (bytes == 0) return cudaSuccess;
  const bool to_device = device_of(to) >= 0, from_device = device_of(from) >= 0;
  if (!fits(kind, to_device, from_device)) return cudaErrorInvalidMemcpyDirection;
  if (!is_valid(to, bytes) || !is_valid(from, bytes)) return cudaErrorInvalidValue;
  Operation operation{.name = {OperationKind::Copy, name}};
  if (!wait && !from_device && !is_pinned(from)) {
    // Pageable memory is read before the call returns.
    const auto* data = static_cast<const char*>(from);
    operation.work = [to, staged = std::vector<char>(data, data + bytes)] {
      return checked_copy(to, staged.data(), staged.size());
    };
  } else {
    operation.work = [=] { return checked_copy(to, from, bytes); };
  }
  CUstream_st* resolved = resolve(stream);
  const int failure = take_failure(Call::Copy);
  const cudaError_t error = failure != 0 ? fail_on(stream, failure) : put_on(stream, std::move(operation));
  if (error != cudaSuccess) return error;
  // Pageable memory is written before the call returns.
  if (wait || (!to_device && !is_pinned(to))) return waited(drain(resolved), resolved->device);
  return cudaSuccess;
}

cudaError_t set(const char* name, void* pointer, int value, std::size_t bytes, cudaStream_t stream) {
  if (bytes == 0) return cudaSuccess;
  if (!is_valid(pointer, bytes)) return cudaErrorInvalidValue;
  return put_on(stream, {.work =
                             [=] {
                               const std::string fault = use_range(pointer, bytes, true);
                               if (!fault.empty()) return refuse(fault);
                               std::memset(pointer, value, bytes);
                               mark_written(pointer, bytes);
                               return cudaSuccess;
                             },
                         .name = {OperationKind::Copy, name}});
}

}  // namespace

void garble_peer_copies(bool garble) { garbling = garble; }

}  // namespace tandem::simt

using namespace tandem::simt;

extern "C" {

cudaError_t cudaMalloc(void** pointer, std::size_t bytes) {
  if (!pointer) return result(cudaErrorInvalidValue);
  *pointer = nullptr;
  if (const cudaError_t dead = device_error(current_device()); dead != cudaSuccess) return result(dead);
  if (const int code = take_failure(Call::Malloc); code != 0) {
    if (is_fault_of_device(code)) kill_device(current_device(), static_cast<cudaError_t>(code));
    return result(static_cast<cudaError_t>(code));
  }
  if (bytes == 0) return cudaSuccess;
  install_fault_handler();
  *pointer = allocate(current_device(), bytes);
  if (!*pointer) return result(cudaErrorMemoryAllocation);
  note_made(Resource::Memory, *pointer, current_device(), bytes, __builtin_return_address(0));
  return result(cudaSuccess);
}
cudaError_t cudaFree(void* pointer) {
  if (!pointer) return cudaSuccess;
  const int device = device_of(pointer);
  if (device < 0) return result(cudaErrorInvalidValue);
  drain_device(device);
  if (!release(pointer)) return result(cudaErrorInvalidValue);
  note_gone(pointer);
  return result(cudaSuccess);
}
cudaError_t cudaHostAlloc(void** pointer, std::size_t bytes, unsigned) {
  if (!pointer) return result(cudaErrorInvalidValue);
  *pointer = nullptr;
  if (const int code = take_failure(Call::Pinned); code != 0) return result(static_cast<cudaError_t>(code));
  *pointer = std::aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
  if (!*pointer) return result(cudaErrorMemoryAllocation);
  note_made(Resource::Pinned, *pointer, 0, bytes, __builtin_return_address(0));
  const std::scoped_lock lock(pinned_mutex);
  pinned.emplace(static_cast<const char*>(*pointer), bytes);
  return cudaSuccess;
}
cudaError_t cudaFreeHost(void* pointer) {
  if (!pointer) return cudaSuccess;
  {
    const std::scoped_lock lock(pinned_mutex);
    if (pinned.erase(static_cast<const char*>(pointer)) == 0) return result(cudaErrorInvalidValue);
  }
  note_gone(pointer);
  std::free(pointer);
  return cudaSuccess;
}
cudaError_t cudaMemGetInfo(std::size_t* free, std::size_t* total) {
  *total = options().memory;
  *free = *total - used_bytes(current_device());
  return cudaSuccess;
}
cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* pointer) {
  *attributes = {};
  attributes->device = device_of(pointer);
  if (attributes->device >= 0) {
    if (!find_allocation(pointer)) return result(cudaErrorInvalidValue);
    attributes->type = cudaMemoryTypeDevice;
    attributes->devicePointer = const_cast<void*>(pointer);
  } else {
    attributes->type = is_pinned(pointer) ? cudaMemoryTypeHost : cudaMemoryTypeUnregistered;
    attributes->hostPointer = const_cast<void*>(pointer);
  }
  return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind, cudaStream_t stream) {
  return result(copy("cudaMemcpyAsync", to, from, bytes, kind, stream, false));
}
cudaError_t cudaMemcpy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind) {
  return result(copy("cudaMemcpy", to, from, bytes, kind, nullptr, true));
}
cudaError_t cudaMemcpyPeerAsync(void* to, int to_device, const void* from, int from_device, std::size_t bytes,
                                cudaStream_t stream) {
  if (bytes > 0 && (device_of(to) != to_device || device_of(from) != from_device)) {
    return result(cudaErrorInvalidValue);
  }
  return result(copy("cudaMemcpyPeerAsync", to, from, bytes, cudaMemcpyDeviceToDevice, stream, false));
}
cudaError_t cudaMemsetAsync(void* pointer, int value, std::size_t bytes, cudaStream_t stream) {
  return result(set("cudaMemsetAsync", pointer, value, bytes, stream));
}
cudaError_t cudaMemset(void* pointer, int value, std::size_t bytes) {
  return result(set("cudaMemset", pointer, value, bytes, nullptr));
}

}  // extern "C"
