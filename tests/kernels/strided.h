#pragma once
// Arrays of any layout for kernel tests, and how close two results should be.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <random>
#include <type_traits>
#include <utility>
#include <vector>

#include "../../kernels/backend.h"
#include "../../kernels/math/convert.h"

namespace tandem::kernels {

using Index = std::int64_t;
using Sizes = std::vector<Index>;

/// Ways to lay out an array.
enum class Layout { Contiguous, Transposed, Reversed, Spaced, Repeated };
inline constexpr Layout kLayouts[] = {Layout::Contiguous, Layout::Transposed, Layout::Reversed, Layout::Spaced,
                                      Layout::Repeated};

/// An array that owns its elements, with a view of any layout.
template <class T>
class Strided {
 public:
  explicit Strided(Sizes sizes, Layout layout = Layout::Contiguous)
      : shape_(std::move(sizes)), strides_(shape_.size()) {
    const std::size_t n = shape_.size();
    const Index unit = layout == Layout::Spaced ? 3 : 1;
    Index step = unit;
    for (std::size_t i = 0; i < n; ++i) {
      const std::size_t d = layout == Layout::Transposed ? i : n - 1 - i;
      strides_[d] = step;
      step *= std::max<Index>(shape_[d], 1);
    }
    data_ = std::make_unique<T[]>(static_cast<std::size_t>(step + 1));
    start_ = data_.get();
    if (layout == Layout::Reversed) {
      for (std::size_t d = 0; d < n; ++d) {
        if (shape_[d] > 0) start_ += (shape_[d] - 1) * strides_[d];
        strides_[d] = -strides_[d];
      }
    }
    if (layout == Layout::Repeated && n > 0) strides_[n / 2] = 0;
  }

  View view() { return {start_, shape_.data(), strides_.data(), static_cast<int>(shape_.size()), dtype_of<T>()}; }
  Index size() { return view().numel(); }
  /// The i-th element in row-major order.
  T& operator[](Index i) {
    T* p = start_;
    for (std::size_t d = shape_.size(); d-- > 0; i /= shape_[d]) p += i % shape_[d] * strides_[d];
    return *p;
  }
  /// The element that broadcasting to `sizes` puts at row-major position i.
  T& broadcast(const Sizes& sizes, Index i) {
    T* p = start_;
    for (std::size_t back = 1; back <= sizes.size(); ++back) {
      const Index size = sizes[sizes.size() - back], at = i % size;
      i /= size;
      if (back <= shape_.size() && shape_[shape_.size() - back] != 1) p += at * strides_[shape_.size() - back];
    }
    return *p;
  }
  Strided& random(unsigned seed, double lo = -4, double hi = 4) {
    std::mt19937 generator(seed);
    std::uniform_real_distribution<double> draw(lo, hi);
    for (Index i = 0; i < size(); ++i) (*this)[i] = math::convert<T>(draw(generator));
    return *this;
  }
  const Sizes& shape() const { return shape_; }

 private:
  Sizes shape_, strides_;
  std::unique_ptr<T[]> data_;
  T* start_ = nullptr;
};

/// Whether a and b are the same up to a few roundings.
template <class T>
bool close(T a, T b) {
  if constexpr (std::is_floating_point_v<T>) {
    if (std::isnan(a) || std::isnan(b)) return std::isnan(a) && std::isnan(b);
    return a == b ||
           std::abs(a - b) <= 16 * std::numeric_limits<T>::epsilon() * std::max({T(1), std::abs(a), std::abs(b)});
  } else {
    return a == b;
  }
}

inline Stream stream_with(int threads) {
  Stream stream;
  stream.threads = threads;
  return stream;
}

}  // namespace tandem::kernels
