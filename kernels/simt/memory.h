#pragma once
// The memory of simulated GPUs. Each device has a range of addresses, so that an address tells its device. Each
// allocation has pages of its own and ends, up to CUDA's alignment of 256 bytes, at a page that nobody may touch; freed
// pages are never handed out again. So most wrong accesses fault at once. Fresh memory is all ones: NaN.

#include <cstddef>
#include <optional>
#include <string>

namespace tandem::simt {

/// The addresses of all devices' memory, one device after another.
struct DeviceRange {
  char* base;
  std::size_t bytes;
  std::size_t per_device;
};
/// Reserved at the first call.
const DeviceRange& device_range();

struct Allocation {
  int device;
  const char* data;
  std::size_t bytes;
};

/// Null when the device has no room.
void* allocate(int device, std::size_t bytes);
/// False if no allocation starts there.
bool release(void* data);
std::optional<Allocation> find_allocation(const void* address);
/// The device in whose range an address lies, or -1.
int device_of(const void* address);
std::size_t used_bytes(int device);

// TANDEM_SIM_CHECK=memory: an allocation is closed to everybody until an operation of a stream touches it.

/// Opens the allocation with this address. In a signal handler, too. False if there is none.
bool open_allocation(const void* address);
/// Closes all that were opened: no operation runs.
void close_allocations();

/// "4 bytes past the end of 1024 bytes on device 0", "freed memory of device 1".
std::string describe_address(const void* address);

}  // namespace tandem::simt
