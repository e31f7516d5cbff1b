#include "context.h"

#include <fmt/format.h>

#include "error.h"
#include "tensor.h"

namespace tandem {

Context& context() {
  thread_local constinit Context current;
  return current;
}

std::vector<Tensor> NoExchange::all_reduce(const char* op, const std::vector<Tensor>&) {
  throw ValueError(fmt::format("{}: {}", op, why_));
}

}  // namespace tandem
