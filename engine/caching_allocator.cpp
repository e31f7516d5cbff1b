// Memory of devices: blocks in size classes, eight per doubling, so that at most an eighth of a block is unused.

#include <fmt/format.h>
#include <sys/mman.h>

#include <array>
#include <atomic>
#include <bit>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "error.h"
#include "runtime.h"
#include "storage.h"

#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define TANDEM_ASAN 1
#endif
#elif defined(__SANITIZE_ADDRESS__)
#define TANDEM_ASAN 1
#endif
#ifdef TANDEM_ASAN
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(address, size) (static_cast<void>(address), static_cast<void>(size))
#define ASAN_UNPOISON_MEMORY_REGION(address, size) (static_cast<void>(address), static_cast<void>(size))
#endif

namespace tandem {
namespace {

constexpr std::size_t kAlignment = 64;
constexpr std::size_t kHugePage = std::size_t{2} << 20;
constexpr int kClasses = 8 * 64;

std::atomic<bool> poison{false};

struct SizeClass {
  int index;
  std::size_t bytes;
};

SizeClass size_class(std::size_t bytes) {
  if (bytes <= 512) {
    const std::size_t units = (bytes + kAlignment - 1) / kAlignment;
    return {static_cast<int>(units), units * kAlignment};
  }
  const int shift = std::bit_width(bytes - 1) - 4;
  const std::size_t units = ((bytes - 1) >> shift) + 1;  // 9 to 16
  return {shift * 8 + static_cast<int>(units), units << shift};
}

class CpuMemory final : public MemorySource {
 public:
  std::byte* allocate(std::size_t bytes) override {
    const std::size_t alignment = bytes >= 2 * kHugePage ? kHugePage : kAlignment;
    void* p = std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
#ifdef MADV_HUGEPAGE
    if (p && alignment == kHugePage) madvise(p, bytes, MADV_HUGEPAGE);
#endif
    return static_cast<std::byte*>(p);
  }
  void free(std::byte* data) noexcept override { std::free(data); }
  void poison(std::byte* data, std::size_t bytes) noexcept override { std::memset(data, 0xff, bytes); }
};

class CudaMemory final : public MemorySource {
 public:
  explicit CudaMemory(kernels::cuda::Queue& queue) : queue_(queue) {}
  std::byte* allocate(std::size_t bytes) override { return kernels::cuda::allocate(queue_, bytes); }
  void free(std::byte* data) noexcept override { kernels::cuda::free(queue_, data); }
  void poison(std::byte* data, std::size_t bytes) noexcept override {
    try {
      kernels::cuda::fill_bytes(queue_, data, 0xff, bytes);
    } catch (const Error&) {  // The device is dead: nobody will read it.
    }
  }

 private:
  kernels::cuda::Queue& queue_;
};

class CachingAllocator final : public Allocator {
 public:
  CachingAllocator(Device device, std::unique_ptr<MemorySource> source) : device_(device), source_(std::move(source)) {}

  std::byte* allocate(std::size_t bytes) override {
    const SizeClass c = size_class(bytes);
    std::byte* p = nullptr;
    {
      const std::scoped_lock lock(mutex_);
      auto& list = free_[static_cast<std::size_t>(c.index)];
      if (!list.empty()) {
        p = list.back();
        list.pop_back();
      } else {
        p = grow(bytes, c);
      }
      stats_.allocated += c.bytes;
      ++stats_.allocations;
      if (stats_.allocated > stats_.peak) stats_.peak = stats_.allocated;
    }
    ASAN_UNPOISON_MEMORY_REGION(p, bytes);
    if (poison.load(std::memory_order_relaxed)) source_->poison(p, bytes);
    return p;
  }

  void free(std::byte* data, std::size_t bytes) noexcept override {
    const SizeClass c = size_class(bytes);
    if (poison.load(std::memory_order_relaxed)) source_->poison(data, bytes);
    // On a CUDA device, what was queued may still use it.
    if (device_.type == DeviceType::CPU) ASAN_POISON_MEMORY_REGION(data, c.bytes);
    const std::scoped_lock lock(mutex_);
    stats_.allocated -= c.bytes;
    auto& list = free_[static_cast<std::size_t>(c.index)];
    if (list.size() < list.capacity()) {
      list.push_back(data);
    } else {
      release(data, c.bytes);
    }
  }

  void empty_cache() override {
    const std::scoped_lock lock(mutex_);
    release_all();
  }

  MemoryStats stats() const override {
    const std::scoped_lock lock(mutex_);
    return stats_;
  }

  void reset_peak() override {
    const std::scoped_lock lock(mutex_);
    stats_.peak = stats_.allocated;
  }

 private:
  /// A new block of class c. Room in the free list is made here, so that free() never has to.
  std::byte* grow(std::size_t bytes, SizeClass c) {
    auto& list = free_[static_cast<std::size_t>(c.index)];
    std::size_t& blocks = blocks_[static_cast<std::size_t>(c.index)];
    list.reserve(std::bit_ceil(blocks + 1));
    std::byte* p = source_->allocate(c.bytes);
    if (!p) {
      const std::size_t cached = stats_.reserved - stats_.allocated;
      release_all();
      p = source_->allocate(c.bytes);
      if (!p) {
        throw MemoryError(
            fmt::format("{}: out of memory: requested {} bytes; {} are allocated, {} were cached and have "
                        "been released",
                        str(device_), bytes, stats_.allocated, cached),
            bytes, cached);
      }
    }
    ++blocks;
    stats_.reserved += c.bytes;
    return p;
  }

  void release(std::byte* p, std::size_t bytes) {
    ASAN_UNPOISON_MEMORY_REGION(p, bytes);
    source_->free(p);
    stats_.reserved -= bytes;
  }

  void release_all() {
    for (int i = 0; i < kClasses; ++i) {
      auto& list = free_[static_cast<std::size_t>(i)];
      const std::size_t bytes = i <= 8 ? static_cast<std::size_t>(i) * kAlignment
                                       : static_cast<std::size_t>((i - 1) % 8 + 9) << ((i - 9) / 8);
      for (std::byte* p : list) release(p, bytes);
      blocks_[static_cast<std::size_t>(i)] -= list.size();
      list.clear();
    }
  }

  Device device_;
  std::unique_ptr<MemorySource> source_;
  mutable std::mutex mutex_;
  std::array<std::vector<std::byte*>, kClasses> free_;
  std::array<std::size_t, kClasses> blocks_{};
  MemoryStats stats_;
};

}  // namespace

std::unique_ptr<Allocator> make_allocator(Device device, kernels::cuda::Queue* queue) {
  std::unique_ptr<MemorySource> source;
  if (queue) {
    source = std::make_unique<CudaMemory>(*queue);
  } else {
    source = std::make_unique<CpuMemory>();
  }
  return std::make_unique<CachingAllocator>(device, std::move(source));
}

void set_poison_memory(bool on) { poison = on; }
bool poison_memory() { return poison; }

Ref<Storage> Storage::allocate(Device device, std::size_t bytes) {
  DeviceState& state = device_state(device);
  std::byte* data = bytes > 0 ? state.allocator->allocate(bytes) : nullptr;
  return Ref<Storage>(new Storage(device, data, bytes));
}

void Storage::destroy(Storage* s) {
  if (s->data_) device_state(s->device_).allocator->free(s->data_, s->bytes_);
  delete s;
}

}  // namespace tandem
