#pragma once
// How reductions combine elements: per ReduceOp the accumulator's type, its start, and one step.

#include <cstdint>
#include <limits>
#include <type_traits>

#include "binary.h"
#include "hd.h"
#include "ops.h"

namespace tandem::kernels {

/// Floating sums accumulate in double, integer and bool sums in 64 bits, wrapping around.
struct SumOf {
  template <class T>
  using Accumulator = std::conditional_t<std::is_floating_point_v<T>, double, std::int64_t>;
  /// The dtype of the result.
  template <class T>
  using Result = std::conditional_t<std::is_floating_point_v<T>, T, std::int64_t>;
  template <class T>
  static TANDEM_HD Accumulator<T> start() {
    return 0;
  }
  template <class A>
  static TANDEM_HD A combine(A a, A b) {
    return math::add(a, b);
  }
};

/// NaN if an element is NaN.
struct MaxOf {
  template <class T>
  using Accumulator = T;
  template <class T>
  using Result = T;
  template <class T>
  static TANDEM_HD T start() {
    constexpr T lowest =
        std::is_floating_point_v<T> ? -std::numeric_limits<T>::infinity() : std::numeric_limits<T>::lowest();
    return lowest;
  }
  template <class A>
  static TANDEM_HD A combine(A a, A b) {
    return Maximum::forward(a, b);
  }
  /// Whether x takes the place of `best`, which came before it.
  template <class T>
  static TANDEM_HD bool better(T x, T best) {
    return !(x <= best) & (best == best);
  }
};

/// NaN if an element is NaN.
struct MinOf {
  template <class T>
  using Accumulator = T;
  template <class T>
  using Result = T;
  template <class T>
  static TANDEM_HD T start() {
    constexpr T highest =
        std::is_floating_point_v<T> ? std::numeric_limits<T>::infinity() : std::numeric_limits<T>::max();
    return highest;
  }
  template <class A>
  static TANDEM_HD A combine(A a, A b) {
    return Minimum::forward(a, b);
  }
  /// Whether x takes the place of `best`, which came before it.
  template <class T>
  static TANDEM_HD bool better(T x, T best) {
    return !(x >= best) & (best == best);
  }
};

}  // namespace tandem::kernels
