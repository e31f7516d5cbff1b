#pragma once
// Memory of tensors, and what tensors share of it.

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "device.h"
#include "ref.h"

namespace tandem {

/// Counts in-place changes. Views of one tensor share a counter.
class Version : public RefCounted<Version> {
 public:
  std::uint32_t value() const { return value_.load(std::memory_order_acquire); }
  void bump() { value_.fetch_add(1, std::memory_order_acq_rel); }
  static void destroy(Version* v) { delete v; }

 private:
  std::atomic<std::uint32_t> value_{0};
};

/// A block of one device's memory, returned to the device's allocator when the last tensor goes.
class Storage : public RefCounted<Storage> {
 public:
  /// `bytes` of uninitialised memory, aligned to 64 bytes. Throws MemoryError.
  static Ref<Storage> allocate(Device device, std::size_t bytes);

  std::byte* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }
  Device device() const { return device_; }
  /// The counter of tensors that have none of their own.
  std::uint32_t version() const { return version_.load(std::memory_order_acquire); }
  void bump() { version_.fetch_add(1, std::memory_order_acq_rel); }

  static void destroy(Storage* s);

 private:
  Storage(Device device, std::byte* data, std::size_t bytes) : data_(data), bytes_(bytes), device_(device) {}
  ~Storage() = default;

  std::byte* data_;
  std::size_t bytes_;
  Device device_;
  std::atomic<std::uint32_t> version_{0};
};

}  // namespace tandem
