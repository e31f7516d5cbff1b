#include "memory.h"

#include <sys/mman.h>

#include <array>
#include <cstdint>
#include <cstring>
#include <map>
#include <mutex>

#include "options.h"

namespace tandem::simt {
namespace {

constexpr std::size_t kPage = 4096;
constexpr std::size_t kAlignment = 256;
constexpr std::size_t kRange = std::size_t{1} << 40;  // addresses cost nothing

struct Block {
  char* pages;
  std::size_t length, bytes;
};

struct DeviceMemory {
  char* base = nullptr;
  std::size_t next = 0, used = 0;
  std::map<const char*, Block> live;  // by the address that the program knows
};

std::mutex mutex;
std::array<DeviceMemory, kMaxDevices> devices;

DeviceMemory& memory_of(int device) {
  DeviceMemory& memory = devices[static_cast<std::size_t>(device)];
  if (!memory.base) {
    void* range = mmap(nullptr, kRange, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (range != MAP_FAILED) memory.base = static_cast<char*>(range);
  }
  return memory;
}

std::size_t round_up(std::size_t n, std::size_t unit) { return (n + unit - 1) / unit * unit; }

}  // namespace

void* allocate(int device, std::size_t bytes) {
  const std::scoped_lock lock(mutex);
  DeviceMemory& memory = memory_of(device);
  const std::size_t padded = round_up(bytes, kAlignment), length = round_up(padded, kPage);
  if (!memory.base || bytes > options().memory || memory.used + padded > options().memory ||
      memory.next + length + kPage > kRange) {
    return nullptr;
  }
  char* pages = memory.base + memory.next;
  if (mprotect(pages, length, PROT_READ | PROT_WRITE) != 0) return nullptr;
  memory.next += length + kPage;
  memory.used += padded;
  char* data = pages + (length - padded);
  std::memset(data, 0xff, padded);
  memory.live.emplace(data, Block{pages, length, bytes});
  return data;
}

bool release(void* data) {
  const int device = device_of(data);
  if (device < 0) return false;
  const std::scoped_lock lock(mutex);
  DeviceMemory& memory = memory_of(device);
  const auto found = memory.live.find(static_cast<const char*>(data));
  if (found == memory.live.end()) return false;
  const Block& block = found->second;
  // A fresh mapping in its place gives the pages back and protects them.
  mmap(block.pages, block.length, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
  memory.used -= round_up(block.bytes, kAlignment);
  memory.live.erase(found);
  return true;
}

std::optional<Allocation> find_allocation(const void* address) {
  const int device = device_of(address);
  if (device < 0) return {};
  const std::scoped_lock lock(mutex);
  const auto& live = memory_of(device).live;
  auto after = live.upper_bound(static_cast<const char*>(address));
  if (after == live.begin()) return {};
  const auto& [data, block] = *--after;
  if (static_cast<const char*>(address) >= data + block.bytes) return {};
  return Allocation{device, data, block.bytes};
}

int device_of(const void* address) {
  const std::scoped_lock lock(mutex);
  const auto at = reinterpret_cast<std::uintptr_t>(address);
  for (int i = 0; i < kMaxDevices; ++i) {
    const auto base = reinterpret_cast<std::uintptr_t>(devices[static_cast<std::size_t>(i)].base);
    if (base != 0 && at >= base && at < base + kRange) return i;
  }
  return -1;
}

std::size_t used_bytes(int device) {
  const std::scoped_lock lock(mutex);
  return memory_of(device).used;
}

std::string describe_address(const void* address) {
  const int device = device_of(address);
  if (device < 0) return "no device memory";
  const std::scoped_lock lock(mutex);
  const auto& live = memory_of(device).live;
  const std::string where = " on device " + std::to_string(device);
  const auto* at = static_cast<const char*>(address);
  const auto after = live.upper_bound(at);
  if (after != live.begin()) {
    const auto& [data, block] = *std::prev(after);
    const auto offset = static_cast<std::size_t>(at - data);
    if (offset < block.bytes) {
      return "byte " + std::to_string(offset) + " of " + std::to_string(block.bytes) + " bytes" + where;
    }
    if (offset < block.length + kPage) {
      return std::to_string(offset - block.bytes) + " bytes past the end of " + std::to_string(block.bytes) + " bytes" +
             where;
    }
  }
  return "freed or never allocated memory" + where;
}

}  // namespace tandem::simt
