#include "shape.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "error.h"

namespace tandem {

Shape::Shape(std::span<const std::int64_t> v) {
  if (v.size() > kMaxDims) {
    throw ShapeError(
        fmt::format("a tensor has at most {} dimensions, got {}: ({})", kMaxDims, v.size(), fmt::join(v, ", ")));
  }
  std::copy(v.begin(), v.end(), v_);
  n_ = static_cast<int>(v.size());
}

void Shape::push_back(std::int64_t x) { insert(n_, x); }

void Shape::insert(int at, std::int64_t x) {
  if (n_ == kMaxDims) throw ShapeError(fmt::format("a tensor has at most {} dimensions", kMaxDims));
  std::copy_backward(v_ + at, v_ + n_, v_ + n_ + 1);
  v_[at] = x;
  ++n_;
}

void Shape::erase(int at) {
  std::copy(v_ + at + 1, v_ + n_, v_ + at);
  --n_;
}

std::string str(const Shape& shape) { return fmt::format("({})", fmt::join(shape.begin(), shape.end(), ", ")); }

Shape contiguous_strides(const Shape& shape) {
  Shape strides = shape;
  std::int64_t step = 1;
  for (int i = shape.size() - 1; i >= 0; --i) {
    strides[i] = step;
    step *= std::max<std::int64_t>(shape[i], 1);
  }
  return strides;
}

std::int64_t checked_numel(const char* op, const Shape& shape, std::size_t item) {
  std::int64_t n = 1;
  std::int64_t padded = static_cast<std::int64_t>(item);  // empty dimensions counted as 1: strides must fit as well
  for (std::int64_t size : shape) {
    if (size < 0) throw ValueError(fmt::format("{}: sizes must not be negative, got {}", op, str(shape)));
    n *= size == 0 ? 0 : 1;
    if (__builtin_mul_overflow(padded, std::max<std::int64_t>(size, 1), &padded)) {
      throw ValueError(fmt::format("{}: {} has more than 2^63 - 1 bytes", op, str(shape)));
    }
  }
  return n * (padded / static_cast<std::int64_t>(item));
}

Shape broadcast_shapes(const char* op, const Shape& a, const Shape& b) {
  Shape out = a.size() >= b.size() ? a : b;
  const Shape& other = a.size() >= b.size() ? b : a;
  const int shift = out.size() - other.size();
  for (int i = 0; i < other.size(); ++i) {
    std::int64_t& size = out[shift + i];
    if (size == other[i] || other[i] == 1) continue;
    if (size != 1) {
      throw ShapeError(fmt::format("{}: shapes {} and {} do not broadcast: sizes {} and {} differ and neither is 1", op,
                                   str(a), str(b), size, other[i]));
    }
    size = other[i];
  }
  return out;
}

int wrap_dim(const char* op, std::int64_t dim, int ndim) {
  const int n = std::max(ndim, 1);
  if (dim < -n || dim >= n) {
    throw IndexError(fmt::format("{}: dimension {} is out of range for a tensor of {} dimensions: wanted {} to {}", op,
                                 dim, ndim, -n, n - 1));
  }
  return static_cast<int>(dim < 0 ? dim + n : dim);
}

}  // namespace tandem
