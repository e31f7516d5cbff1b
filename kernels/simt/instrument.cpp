#include "instrument.h"

#include <link.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "block.h"
#include "clocks.h"
#include "memory.h"
#include "options.h"
#include "runtime.h"
#include "symbol.h"

namespace tandem::simt {
namespace {

/// The calling thread's thread_local variables, of all modules that were there at the start: __shared__ is among them.
std::pair<const char*, std::size_t> thread_storage() {
  std::pair<const char*, const char*> range{};
  dl_iterate_phdr(
      [](dl_phdr_info* info, std::size_t, void* data) {
        auto& [begin, end] = *static_cast<std::pair<const char*, const char*>*>(data);
        for (int i = 0; i < info->dlpi_phnum; ++i) {
          if (info->dlpi_phdr[i].p_type != PT_TLS || !info->dlpi_tls_data) continue;
          const auto* first = static_cast<const char*>(info->dlpi_tls_data);
          const char* last = first + info->dlpi_phdr[i].p_memsz;
          // Those of modules that were loaded later lie elsewhere.
          if (begin && (last + (1 << 20) < begin || first > end + (1 << 20))) continue;
          begin = begin ? std::min(begin, first) : first;
          end = std::max(end, last);
        }
        return 0;
      },
      &range);
  range.first -= reinterpret_cast<std::uintptr_t>(range.first) % 16;
  return {range.first, static_cast<std::size_t>(range.second - range.first)};
}

std::int32_t pack(const void* code) {
  return static_cast<std::int32_t>(static_cast<const char*>(code) - reinterpret_cast<const char*>(&thread_storage));
}
const void* unpack(std::int32_t code) { return reinterpret_cast<const char*>(&thread_storage) + code; }

/// "at file:line" of the instruction before the one to return to.
std::string place(const void* code) { return ", at " + place_of_instruction(static_cast<const char*>(code) - 1); }

/// Whether a read gets what nothing has written. Structures are copied with their padding, which nothing writes: where
/// more than 4 bytes are read, some byte of each 8 must be written.
bool reads_unwritten(const Access& access, const std::uint8_t* states, std::size_t bytes) {
  if (!access.read || !options().check.unwritten) return false;
  std::size_t first = 0;
  while (first < bytes && (states[first] & kWritten) != 0) ++first;
  if (first == bytes) return false;
  if (bytes <= 4) return true;
  for (std::size_t i = 0; i < bytes; i += 8) {
    std::uint8_t any = 0;
    for (std::size_t j = i; j < std::min(i + 8, bytes); ++j) any |= states[j];
    if ((any & kWritten) == 0) return true;
  }
  return false;
}

std::string what(const Access& access) {
  const char* verb = access.atomic ? "an atomic access to " : access.write ? "a write of " : "a read of ";
  return verb + std::to_string(access.bytes) + " bytes";
}

}  // namespace

void AccessChecker::Local::set(const char* base, std::size_t size) {
  memory = {base, size};
  states.resize(size);
  if (options().check.races && touches.size() < size / kWord + 1) touches = std::vector<WordTouches>(size / kWord + 1);
}

void AccessChecker::start_launch(const LaunchShape& shape, void* shared) {
  const RunningOperation* operation = running_operation();
  device_ = operation ? operation->device : 0;
  devices_ = {device_range().base, device_range().bytes};
  if (!static_shared_.memory.base) {
    const auto [base, size] = thread_storage();
    static_shared_.set(base, size);
  }
  dynamic_bytes_ = shape.shared;
  dynamic_shared_.set(static_cast<const char*>(shared) - kZone, shape.shared + 2 * kZone);
  order_.start_launch();
}

void AccessChecker::start_block(std::size_t threads) {
  std::fill(static_shared_.states.begin(), static_shared_.states.end(), kAllocated);
  std::fill(dynamic_shared_.states.begin(), dynamic_shared_.states.end(), std::uint8_t{0});
  std::fill_n(dynamic_shared_.states.begin() + kZone, dynamic_bytes_, kAllocated);
  // The thread's place in the grid lies there, too.
  for (const auto& [variable, size] : {std::pair<const void*, std::size_t>{&threadIdx, sizeof threadIdx},
                                       {&blockIdx, sizeof blockIdx},
                                       {&blockDim, sizeof blockDim},
                                       {&gridDim, sizeof gridDim}}) {
    if (!static_shared_.memory.has(variable)) continue;
    const auto offset = static_cast<const char*>(variable) - static_shared_.memory.base;
    std::fill_n(static_shared_.states.begin() + offset, size, kAllocated | kWritten);
  }
  order_.start_block(threads);
}

void AccessChecker::check(const Access& access) {
  const auto offset = static_cast<std::size_t>(static_cast<const char*>(access.address) - devices_.base);
  if (offset < devices_.size) {
    check_device(access, offset);
  } else if (dynamic_shared_.memory.has(access.address)) {
    check_shared(access, dynamic_shared_);
  } else if (static_shared_.memory.has(access.address)) {
    check_shared(access, static_shared_);
  }
}

void AccessChecker::check_device(const Access& access, std::size_t offset) {
  const int device = static_cast<int>(offset / device_range().per_device);
  if (device != device_ && !peer_access(device_, device)) {
    abandon_kernel(what(access) + " of another device's memory, without peer access from device " +
                   std::to_string(device_) + ": " + describe_address(access.address) + place(access.code));
    stop_kernel();
  }
  std::uint8_t* states = shadow().states + offset;
  std::uint8_t all = kAllocated | kWritten;
  for (std::size_t i = 0; i < access.bytes; ++i) all &= std::atomic_ref(states[i]).load(std::memory_order_relaxed);
  if ((all & kAllocated) == 0) {
    std::size_t i = 0;
    while ((states[i] & kAllocated) != 0) ++i;
    abandon_kernel("illegal access to " + describe_address(static_cast<const char*>(access.address) + i) + ": " +
                   what(access) + place(access.code));
    stop_kernel();
  }
  if ((all & kWritten) == 0 && reads_unwritten(access, states, access.bytes)) {
    const char* first = static_cast<const char*>(access.address) + find_unwritten(access.address, access.bytes);
    abandon_kernel(what(access) + ", which nothing has written: " + describe_address(first) + place(access.code));
    stop_kernel();
  }
  if (access.write && (all & kWritten) == 0) {
    for (std::size_t i = 0; i < access.bytes; ++i) {
      std::atomic_ref(states[i]).store(kAllocated | kWritten, std::memory_order_relaxed);
    }
  }
  if (shadow().touches) check_race(access, shadow().touches, offset, false);
  const RunningOperation* self = running_operation();
  if (!shadow().uses || !self || self->id == 0) return;
  for (std::size_t i = offset / kWord; i <= (offset + access.bytes - 1) / kWord; ++i) {
    if (const OperationId other = use_word(shadow().uses[i], *self, access.write); other != 0) {
      abandon_kernel(what(access) + ", " + describe_address(access.address) + ", which " +
                     describe_conflict(other, *self) + place(access.code));
      stop_kernel();
    }
  }
}

void AccessChecker::check_shared(const Access& access, Local& local) {
  const auto offset = static_cast<std::size_t>(static_cast<const char*>(access.address) - local.memory.base);
  std::uint8_t* states = local.states.data() + offset;
  const std::size_t bytes = std::min(access.bytes, local.memory.size - offset);
  std::uint8_t all = kAllocated | kWritten;
  for (std::size_t i = 0; i < bytes; ++i) all &= states[i];
  if ((all & kAllocated) == 0) {
    const auto at = static_cast<std::ptrdiff_t>(offset) - static_cast<std::ptrdiff_t>(kZone);
    abandon_kernel(what(access) + " outside dynamic shared memory: at byte " + std::to_string(at) + " of " +
                   std::to_string(dynamic_bytes_) + place(access.code));
    stop_kernel();
  }
  if ((all & kWritten) == 0 && reads_unwritten(access, states, bytes)) {
    abandon_kernel(what(access) + " of shared memory, which nothing has written in this block" + place(access.code));
    stop_kernel();
  }
  if (access.write) std::fill_n(states, bytes, kAllocated | kWritten);
  if (!local.touches.empty()) check_race(access, local.touches.data(), offset, true);
}

void AccessChecker::check_race(const Access& access, WordTouches* touches, std::size_t offset, bool shared) {
  const std::int32_t code = pack(access.code);
  const std::size_t end = offset + access.bytes;
  for (std::size_t word = offset / kWord; word * kWord < end; ++word) {
    const std::size_t first = std::max(offset, word * kWord) - word * kWord;
    const std::size_t last = std::min(end - word * kWord, kWord);
    const unsigned bytes = (1U << last) - (1U << first);
    const std::optional<Race> race = order_.access(touches[word], {bytes, access.write, access.atomic, shared, code});
    if (!race) continue;
    abandon_kernel("a race: " + what(access) +
                   (shared ? " of shared memory" : ", " + describe_address(access.address)) + place(access.code) +
                   ", and another thread's " + (race->write ? "write" : "read") + place(unpack(race->code)) +
                   (shared ? ", with no barrier between" : ", in no order"));
    stop_kernel();
  }
}

}  // namespace tandem::simt
