#pragma once
// What the checks remember of device memory: of each byte, whether it is allocated and whether anything has written it;
// of each 4 bytes, who used them last. It lies in address ranges of its own, at fixed distances from device memory, and
// costs memory where it is used. Addresses are never given out twice, so what is fresh is zero.

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace tandem::simt {

inline constexpr std::size_t kWord = 4;

/// Bits of a byte's state.
inline constexpr std::uint8_t kAllocated = 1, kWritten = 2;

/// An access to a word in a launch, packed; see race.h.
struct Touch {
  std::atomic<std::uint64_t> who{0};
  std::atomic<std::uint32_t> lanes{0};
  std::atomic<std::int32_t> code{0};
};
struct WordTouches {
  Touch write, read;
};

/// The operations that used a word last, as OperationId of clocks.h.
struct WordUses {
  std::atomic<std::uint64_t> write{0}, read{0}, other_read{0};
};

/// Null where no check wants it.
struct Shadow {
  std::uint8_t* states = nullptr;  ///< of the byte at device_range().base, and so on
  WordTouches* touches = nullptr;  ///< of the first word
  WordUses* uses = nullptr;
};
const Shadow& shadow();

/// Whether kernels tell of their accesses: some file of the program is compiled with -fsanitize=thread.
bool is_instrumented();

// The address is in device memory, or nothing happens. See also mark_unwritten() in control.h.

void mark_allocated(const void* address, std::size_t bytes);
void mark_freed(const void* address, std::size_t bytes);
void mark_written(const void* address, std::size_t bytes);
/// For a copy. Host memory counts as written.
void copy_marks(const void* to, const void* from, std::size_t bytes);
/// The offset of the first byte that nothing has written; `bytes` if there is none.
std::size_t find_unwritten(const void* address, std::size_t bytes);

}  // namespace tandem::simt
