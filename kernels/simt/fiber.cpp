#include "fiber.h"

#include <sys/mman.h>
#include <ucontext.h>

#include <cstdint>
#include <cstring>
#include <exception>
#include <new>
#include <utility>

#include "sanitizers.h"

#ifdef TANDEM_SIMT_ASAN
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif
#ifdef TANDEM_SIMT_TSAN
#include <sanitizer/tsan_interface.h>
#endif

namespace tandem::simt {
namespace {

constexpr std::size_t kGuard = 4096;
#if defined(TANDEM_SIMT_ASAN) || defined(TANDEM_SIMT_TSAN)
constexpr std::size_t kStack = std::size_t{256} << 10;
#else
constexpr std::size_t kStack = std::size_t{64} << 10;
#endif

}  // namespace

struct Fiber::State {
  std::function<void()> body;
  std::byte* stack = nullptr;  // a guard page, then the stack
#if defined(__x86_64__)
  void* stack_pointer = nullptr;
#else
  ucontext_t context{};
#endif
#ifdef TANDEM_SIMT_ASAN
  void* fake_stack = nullptr;
  const void* bottom = nullptr;
  std::size_t size = 0;
#endif
#ifdef TANDEM_SIMT_TSAN
  void* tsan = nullptr;
#endif
  State* came_from = nullptr;

  void arrived() {
#ifdef TANDEM_SIMT_ASAN
    __sanitizer_finish_switch_fiber(fake_stack, &came_from->bottom, &came_from->size);
#endif
  }
  [[noreturn]] void start() {
    arrived();
    body();
    std::terminate();
  }
};

#if defined(__x86_64__)

extern "C" void tandem_simt_switch(void** save, void* load);
asm(R"(
.text
.globl tandem_simt_switch
.hidden tandem_simt_switch
.type tandem_simt_switch, @function
tandem_simt_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size tandem_simt_switch, .-tandem_simt_switch
)");

#endif

namespace {
thread_local void* starting = nullptr;
}  // namespace

Fiber::Fiber() : state_(std::make_unique<State>()) {
#ifdef TANDEM_SIMT_TSAN
  state_->tsan = __tsan_get_current_fiber();
#endif
}

Fiber::Fiber(std::function<void()> body) : state_(std::make_unique<State>()) {
  state_->body = std::move(body);
  void* memory =
      mmap(nullptr, kGuard + kStack, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  mprotect(memory, kGuard, PROT_NONE);
  state_->stack = static_cast<std::byte*>(memory);
  void (*entry)() = [] { static_cast<State*>(starting)->start(); };
#if defined(__x86_64__)
  // What tandem_simt_switch pops: six registers, then the address to return to. At a function's first instruction the
  // stack pointer is 8 past a multiple of 16.
  auto* top = reinterpret_cast<void**>(state_->stack + kGuard + kStack) - 2;
  *top = reinterpret_cast<void*>(entry);
  state_->stack_pointer = top - 6;
#else
  getcontext(&state_->context);
  state_->context.uc_stack.ss_sp = state_->stack + kGuard;
  state_->context.uc_stack.ss_size = kStack;
  makecontext(&state_->context, entry, 0);
#endif
#ifdef TANDEM_SIMT_ASAN
  state_->bottom = state_->stack + kGuard;
  state_->size = kStack;
#endif
#ifdef TANDEM_SIMT_TSAN
  state_->tsan = __tsan_create_fiber(0);
#endif
}

Fiber::~Fiber() {
  if (!state_->stack) return;
#ifdef TANDEM_SIMT_TSAN
  __tsan_destroy_fiber(state_->tsan);
#endif
#ifdef TANDEM_SIMT_ASAN
  // Functions that were abandoned have left marks on their variables' surroundings.
  __asan_unpoison_memory_region(state_->stack + kGuard, kStack);
#endif
  munmap(state_->stack, kGuard + kStack);
}

void Fiber::switch_from(Fiber& from) {
  State& here = *from.state_;
  State& there = *state_;
  there.came_from = &here;
  starting = &there;
#ifdef TANDEM_SIMT_ASAN
  __sanitizer_start_switch_fiber(&here.fake_stack, there.bottom, there.size);
#endif
#ifdef TANDEM_SIMT_TSAN
  __tsan_switch_to_fiber(there.tsan, 0);
#endif
#if defined(__x86_64__)
  tandem_simt_switch(&here.stack_pointer, there.stack_pointer);
#else
  swapcontext(&here.context, &there.context);
#endif
  here.arrived();
}

}  // namespace tandem::simt
