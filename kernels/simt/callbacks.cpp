// What the compiler's -fsanitize=thread calls; see instrument.h. It replaces atomic operations by calls, so these do
// them.

#include "sanitizers.h"

#ifndef TANDEM_SIMT_TSAN

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "instrument.h"

namespace tandem::simt {
namespace {

// Set while a kernel's own code runs in the calling thread.
constinit thread_local AccessChecker* checker = nullptr;
constinit bool instrumented = false;

inline void tell(const volatile void* address, std::size_t bytes, bool read, bool write, bool atomic,
                 const void* code) {
  if (AccessChecker* c = checker) c->check({const_cast<const void*>(address), bytes, read, write, atomic, code});
}

}  // namespace

bool is_instrumented() { return instrumented; }

void AccessChecker::run(std::size_t thread) {
  if (!instrumented) return;
  order_.run(thread);
  checker = this;
}
void AccessChecker::pause() { checker = nullptr; }

}  // namespace tandem::simt

using tandem::simt::tell;
#define TANDEM_CODE __builtin_return_address(0)

extern "C" {

void __tsan_init() { tandem::simt::instrumented = true; }
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_ignore_thread_begin() {}
void __tsan_ignore_thread_end() {}
void __tsan_vptr_update(void**, void*) {}
void __tsan_vptr_read(void**) {}

#define TANDEM_ACCESS(size)                                                                          \
  void __tsan_read##size(void* p) { tell(p, size, true, false, false, TANDEM_CODE); }                \
  void __tsan_write##size(void* p) { tell(p, size, false, true, false, TANDEM_CODE); }               \
  void __tsan_read_write##size(void* p) { tell(p, size, true, true, false, TANDEM_CODE); }           \
  void __tsan_unaligned_read##size(void* p) { tell(p, size, true, false, false, TANDEM_CODE); }      \
  void __tsan_unaligned_write##size(void* p) { tell(p, size, false, true, false, TANDEM_CODE); }     \
  void __tsan_unaligned_read_write##size(void* p) { tell(p, size, true, true, false, TANDEM_CODE); } \
  void __tsan_volatile_read##size(void* p) { tell(p, size, true, false, false, TANDEM_CODE); }       \
  void __tsan_volatile_write##size(void* p) { tell(p, size, false, true, false, TANDEM_CODE); }
TANDEM_ACCESS(1)
TANDEM_ACCESS(2)
TANDEM_ACCESS(4)
TANDEM_ACCESS(8)
TANDEM_ACCESS(16)
#undef TANDEM_ACCESS

void __tsan_read_range(void* p, std::size_t bytes) { tell(p, bytes, true, false, false, TANDEM_CODE); }
void __tsan_write_range(void* p, std::size_t bytes) { tell(p, bytes, false, true, false, TANDEM_CODE); }

void* __tsan_memcpy(void* to, const void* from, std::size_t bytes) {
  tell(from, bytes, true, false, false, TANDEM_CODE);
  tell(to, bytes, false, true, false, TANDEM_CODE);
  return std::memmove(to, from, bytes);
}
void* __tsan_memmove(void* to, const void* from, std::size_t bytes) {
  tell(from, bytes, true, false, false, TANDEM_CODE);
  tell(to, bytes, false, true, false, TANDEM_CODE);
  return std::memmove(to, from, bytes);
}
void* __tsan_memset(void* to, int value, std::size_t bytes) {
  tell(to, bytes, false, true, false, TANDEM_CODE);
  return std::memset(to, value, bytes);
}
/// For clang 14, which calls memcpy for large assignments; a program linked with --wrap=memcpy calls this.
void* __wrap_memcpy(void* to, const void* from, std::size_t bytes) {
  tell(from, bytes, true, false, false, TANDEM_CODE);
  tell(to, bytes, false, true, false, TANDEM_CODE);
  return std::memmove(to, from, bytes);
}

void __tsan_atomic_thread_fence(int) { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
void __tsan_atomic_signal_fence(int) { __atomic_signal_fence(__ATOMIC_SEQ_CST); }

#define TANDEM_FETCH(bits, type, name)                                     \
  type __tsan_atomic##bits##_fetch_##name(volatile type* p, type v, int) { \
    tell(p, sizeof(type), true, true, true, TANDEM_CODE);                  \
    return __atomic_fetch_##name(p, v, __ATOMIC_SEQ_CST);                  \
  }
#define TANDEM_ATOMIC(bits, type)                                                                         \
  type __tsan_atomic##bits##_load(const volatile type* p, int) {                                          \
    tell(p, sizeof(type), true, false, true, TANDEM_CODE);                                                \
    return __atomic_load_n(p, __ATOMIC_SEQ_CST);                                                          \
  }                                                                                                       \
  void __tsan_atomic##bits##_store(volatile type* p, type v, int) {                                       \
    tell(p, sizeof(type), false, true, true, TANDEM_CODE);                                                \
    __atomic_store_n(p, v, __ATOMIC_SEQ_CST);                                                             \
  }                                                                                                       \
  type __tsan_atomic##bits##_exchange(volatile type* p, type v, int) {                                    \
    tell(p, sizeof(type), true, true, true, TANDEM_CODE);                                                 \
    return __atomic_exchange_n(p, v, __ATOMIC_SEQ_CST);                                                   \
  }                                                                                                       \
  int __tsan_atomic##bits##_compare_exchange_strong(volatile type* p, type* expected, type v, int, int) { \
    tell(p, sizeof(type), true, true, true, TANDEM_CODE);                                                 \
    return __atomic_compare_exchange_n(p, expected, v, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);        \
  }                                                                                                       \
  int __tsan_atomic##bits##_compare_exchange_weak(volatile type* p, type* expected, type v, int, int) {   \
    tell(p, sizeof(type), true, true, true, TANDEM_CODE);                                                 \
    return __atomic_compare_exchange_n(p, expected, v, true, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);         \
  }                                                                                                       \
  type __tsan_atomic##bits##_compare_exchange_val(volatile type* p, type expected, type v, int, int) {    \
    tell(p, sizeof(type), true, true, true, TANDEM_CODE);                                                 \
    __atomic_compare_exchange_n(p, &expected, v, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);              \
    return expected;                                                                                      \
  }                                                                                                       \
  TANDEM_FETCH(bits, type, add)                                                                           \
  TANDEM_FETCH(bits, type, sub)                                                                           \
  TANDEM_FETCH(bits, type, and)                                                                           \
  TANDEM_FETCH(bits, type, or)                                                                            \
  TANDEM_FETCH(bits, type, xor)                                                                           \
  TANDEM_FETCH(bits, type, nand)
TANDEM_ATOMIC(8, std::uint8_t)
TANDEM_ATOMIC(16, std::uint16_t)
TANDEM_ATOMIC(32, std::uint32_t)
TANDEM_ATOMIC(64, std::uint64_t)

}  // extern "C"

#else  // the real ThreadSanitizer is linked

#include "instrument.h"

namespace tandem::simt {

bool is_instrumented() { return false; }
void AccessChecker::run(std::size_t) {}
void AccessChecker::pause() {}

}  // namespace tandem::simt

#endif
