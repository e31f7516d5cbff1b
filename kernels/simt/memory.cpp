#include "memory.h"

#include <sys/mman.h>

#include <array>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <map>
#include <mutex>
#include <utility>

#include "options.h"
#include "sanitizers.h"
#include "shadow.h"

namespace tandem::simt {
namespace {

constexpr std::size_t kPage = 4096;
constexpr std::size_t kAlignment = 256;
// Addresses cost nothing; but ThreadSanitizer leaves few.
#ifdef TANDEM_SIMT_TSAN
constexpr std::size_t kPerDevice = std::size_t{1} << 35;
#else
constexpr std::size_t kPerDevice = std::size_t{1} << 38;
#endif

struct Block {
  char* pages;
  std::size_t length, bytes;
  bool open;
  Block* next_opened = nullptr;
};

struct DeviceMemory {
  std::size_t next = 0, used = 0;
  std::map<const char*, Block> live;  // by the address that the program knows
};

// Never destroyed: host code of static objects may free memory late.
struct Memories {
  std::mutex mutex;
  std::array<DeviceMemory, kMaxDevices> devices;
  Block* opened = nullptr;  // a list, because signal handlers cannot allocate
};
Memories& memories() {
  static auto* m = new Memories;
  return *m;
}
DeviceMemory& memory_of(int device) { return memories().devices[static_cast<std::size_t>(device)]; }

std::size_t round_up(std::size_t n, std::size_t unit) { return (n + unit - 1) / unit * unit; }

/// With the mutex locked: the live allocation with this address.
std::map<const char*, Block>::iterator find_live(const void* address, int device) {
  auto& live = memory_of(device).live;
  auto after = live.upper_bound(static_cast<const char*>(address));
  if (after == live.begin()) return live.end();
  --after;
  return static_cast<const char*>(address) < after->first + after->second.bytes ? after : live.end();
}

}  // namespace

const DeviceRange& device_range() {
  static const DeviceRange range = [] {
    const std::size_t bytes = kPerDevice * static_cast<std::size_t>(options().gpus);
    void* base =
        bytes == 0 ? MAP_FAILED : mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (base == MAP_FAILED) return DeviceRange{nullptr, 0, kPerDevice};
    return DeviceRange{static_cast<char*>(base), bytes, kPerDevice};
  }();
  return range;
}

void* allocate(int device, std::size_t bytes) {
  const DeviceRange& range = device_range();
  Memories& all = memories();
  const std::scoped_lock lock(all.mutex);
  DeviceMemory& memory = memory_of(device);
  const std::size_t padded = round_up(bytes, kAlignment), length = round_up(padded, kPage);
  if (!range.base || bytes > options().memory || memory.used + padded > options().memory ||
      memory.next + length + 2 * kPage > kPerDevice) {
    return nullptr;
  }
  // The page before the first allocation stays forbidden, too.
  char* pages = range.base + static_cast<std::size_t>(device) * kPerDevice + kPage + memory.next;
  if (mprotect(pages, length, PROT_READ | PROT_WRITE) != 0) return nullptr;
  memory.next += length + kPage;
  memory.used += padded;
  char* data = pages + (length - padded);
  std::memset(data, 0xff, padded);
  const bool open = !options().check.memory;
  if (!open) mprotect(pages, length, PROT_NONE);
  memory.live.emplace(data, Block{pages, length, bytes, open});
  mark_allocated(data, bytes);
  return data;
}

bool release(void* data) {
  const int device = device_of(data);
  if (device < 0) return false;
  Memories& all = memories();
  const std::scoped_lock lock(all.mutex);
  DeviceMemory& memory = memory_of(device);
  const auto found = memory.live.find(static_cast<const char*>(data));
  if (found == memory.live.end()) return false;
  const Block& block = found->second;
  // A fresh mapping in its place gives the pages back and protects them.
  static_cast<void>(
      mmap(block.pages, block.length, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0));
  mark_freed(data, block.bytes);
  for (Block** link = &all.opened; *link; link = &(*link)->next_opened) {
    if (*link != &block) continue;
    *link = block.next_opened;
    break;
  }
  memory.used -= round_up(block.bytes, kAlignment);
  memory.live.erase(found);
  return true;
}

std::optional<Allocation> find_allocation(const void* address) {
  const int device = device_of(address);
  if (device < 0) return {};
  const std::scoped_lock lock(memories().mutex);
  const auto found = find_live(address, device);
  if (found == memory_of(device).live.end()) return {};
  return Allocation{device, found->first, found->second.bytes};
}

int device_of(const void* address) {
  const DeviceRange& range = device_range();
  const std::size_t offset = reinterpret_cast<std::uintptr_t>(address) - reinterpret_cast<std::uintptr_t>(range.base);
  return offset < range.bytes ? static_cast<int>(offset / kPerDevice) : -1;
}

bool open_allocation(const void* address) {
  const int device = device_of(address);
  if (device < 0) return false;
  Memories& all = memories();
  const std::scoped_lock lock(all.mutex);
  const auto found = find_live(address, device);
  if (found == memory_of(device).live.end() || !options().check.memory) return false;
  Block& block = found->second;
  if (block.open) return true;  // meanwhile, by another thread
  if (mprotect(block.pages, block.length, PROT_READ | PROT_WRITE) != 0) return false;
  block.open = true;
  block.next_opened = all.opened;
  all.opened = &block;
  return true;
}

void close_allocations() {
  Memories& all = memories();
  const std::scoped_lock lock(all.mutex);
  for (Block* block = std::exchange(all.opened, nullptr); block; block = block->next_opened) {
    mprotect(block->pages, block->length, PROT_NONE);
    block->open = false;
  }
}

std::size_t used_bytes(int device) {
  const std::scoped_lock lock(memories().mutex);
  return memory_of(device).used;
}

std::string describe_address(const void* address) {
  const int device = device_of(address);
  if (device < 0) return "no device memory";
  const std::scoped_lock lock(memories().mutex);
  const auto& live = memory_of(device).live;
  const std::string where = " on device " + std::to_string(device);
  const auto* at = static_cast<const char*>(address);
  const auto after = live.upper_bound(at);
  const Block* nearest = nullptr;
  std::size_t past = 0;
  if (after != live.begin()) {
    const auto& [data, block] = *std::prev(after);
    const auto offset = static_cast<std::size_t>(at - data);
    if (offset < block.bytes) {
      return "byte " + std::to_string(offset) + " of " + std::to_string(block.bytes) + " bytes" + where;
    }
    past = offset - block.bytes;
    if (at < block.pages + block.length + kPage) nearest = &block;
  }
  if (after != live.end() && at >= after->second.pages - kPage) {
    const auto before = static_cast<std::size_t>(after->first - at);
    if (!nearest || before <= past) {
      return std::to_string(before) + " bytes before the beginning of " + std::to_string(after->second.bytes) +
             " bytes" + where;
    }
  }
  if (nearest) {
    return std::to_string(past) + " bytes past the end of " + std::to_string(nearest->bytes) + " bytes" + where;
  }
  return "freed or never allocated memory" + where;
}

}  // namespace tandem::simt
