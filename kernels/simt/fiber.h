#pragma once
// A fiber: a function with a stack of its own that can be left in its middle and resumed later, on the same OS thread.
//
// Leaving means: push the registers that a function must preserve, remember the stack pointer, load that of the other
// fiber, pop its registers, return. That takes about as long as two function calls. Elsewhere than on x86-64 the C
// library's ucontext does it, more slowly.

#include <cstddef>
#include <functional>
#include <memory>

namespace tandem::simt {

class Fiber {
 public:
  /// The thread's own stack, which runs already.
  Fiber();
  /// Will run `body` when first switched to. `body` never returns: it switches away for good.
  explicit Fiber(std::function<void()> body);
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  /// Leaves `from`, which is running, and goes on in this fiber.
  void switch_from(Fiber& from);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace tandem::simt
