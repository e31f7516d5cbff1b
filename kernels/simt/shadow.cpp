#include "shadow.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "control.h"
#include "instrument.h"
#include "memory.h"
#include "options.h"

namespace tandem::simt {
namespace {

template <class T>
T* reserve(std::size_t count) {
  void* memory =
      mmap(nullptr, count * sizeof(T), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory != MAP_FAILED) return static_cast<T*>(memory);
  std::fputs("simulated GPU: no room for what TANDEM_SIM_CHECK asks for\n", stderr);
  return nullptr;
}

/// Gives the memory of these notes back, except where a page holds others, too.
template <class T>
void drop(T* notes, std::size_t first, std::size_t count) {
  if (!notes) return;
  constexpr std::uintptr_t kPage = 4096;
  const auto begin = (reinterpret_cast<std::uintptr_t>(notes + first) + kPage - 1) / kPage * kPage;
  const auto end = reinterpret_cast<std::uintptr_t>(notes + first + count) / kPage * kPage;
  if (begin < end) madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
}

/// The states of these bytes, or null.
std::uint8_t* states_of(const void* address) {
  if (!shadow().states || device_of(address) < 0) return nullptr;
  return shadow().states + (static_cast<const char*>(address) - device_range().base);
}

void set_states(const void* address, std::size_t bytes, std::uint8_t state) {
  if (std::uint8_t* states = states_of(address)) std::memset(states, state, bytes);
}

}  // namespace

const Shadow& shadow() {
  static const Shadow made = [] {
    Shadow s;
    const std::size_t bytes = device_range().bytes;
    const Checks& check = options().check;
    if (bytes == 0) return s;
    if ((check.races || check.unwritten) && !is_instrumented()) {
      std::fputs("simulated GPU: TANDEM_SIM_CHECK: races and unwritten need instrumented kernels; not checked\n",
                 stderr);
    }
    if (is_instrumented()) s.states = reserve<std::uint8_t>(bytes);
    if (is_instrumented() && check.races) s.touches = reserve<WordTouches>(bytes / kWord);
    if (check.streams) s.uses = reserve<WordUses>(bytes / kWord);
    return s;
  }();
  return made;
}

void mark_allocated(const void* address, std::size_t bytes) { set_states(address, bytes, kAllocated); }
void mark_written(const void* address, std::size_t bytes) { set_states(address, bytes, kAllocated | kWritten); }
void mark_unwritten(const void* address, std::size_t bytes) { set_states(address, bytes, kAllocated); }

void mark_freed(const void* address, std::size_t bytes) {
  if (device_of(address) < 0) return;
  set_states(address, bytes, 0);
  const auto first = static_cast<std::size_t>(static_cast<const char*>(address) - device_range().base);
  drop(shadow().states, first, bytes);
  drop(shadow().touches, first / kWord, bytes / kWord);
  drop(shadow().uses, first / kWord, bytes / kWord);
}

void copy_marks(const void* to, const void* from, std::size_t bytes) {
  std::uint8_t* target = states_of(to);
  if (!target) return;
  if (const std::uint8_t* source = states_of(from)) {
    std::memmove(target, source, bytes);
  } else {
    std::memset(target, kAllocated | kWritten, bytes);
  }
}

std::size_t find_unwritten(const void* address, std::size_t bytes) {
  const std::uint8_t* states = states_of(address);
  if (!states) return bytes;
  return static_cast<std::size_t>(
      std::find_if(states, states + bytes, [](std::uint8_t state) { return (state & kWritten) == 0; }) - states);
}

}  // namespace tandem::simt
