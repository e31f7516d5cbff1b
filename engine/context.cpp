#include "context.h"

#include <chrono>

namespace tandem {

Context& context() {
  thread_local constinit Context current;
  return current;
}

std::int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

}  // namespace tandem
