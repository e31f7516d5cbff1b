// The checks and the printing of pooling layers.

#include "functional_layers.h"

#include <fmt/format.h>

#include "../engine/error.h"
#include "repr.h"

namespace tandem::nn {

Pool2d::Pool2d(Size2d kernel, const PoolOptions& o)
    : kernel_size(kernel), stride(o.stride.pair() == Pair{0, 0} ? kernel : o.stride), padding(o.padding) {
  if (kernel.height < 1 || kernel.width < 1) {
    throw ValueError("pooling: kernel_size must be at least 1, got " + repr(kernel));
  }
  if (stride.height < 1 || stride.width < 1) {
    throw ValueError("pooling: stride must be at least 1, got " + repr(stride));
  }
  if (padding.height < 0 || padding.width < 0 || padding.height > kernel.height / 2 ||
      padding.width > kernel.width / 2) {
    throw ValueError(
        fmt::format("pooling: padding must be from 0 to half of kernel_size {}, got {}", repr(kernel), repr(padding)));
  }
}

std::string Pool2d::extra_repr() const {
  const auto text = [](Size2d s) { return s.height == s.width ? std::to_string(s.height) : repr(s); };
  return fmt::format("kernel_size={}, stride={}, padding={}", text(kernel_size), text(stride), text(padding));
}

}  // namespace tandem::nn
