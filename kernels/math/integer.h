#pragma once
// Integer arithmetic that wraps around, as everywhere in PyTorch, without the undefined behaviour of signed overflow.

#include <cstdint>
#include <type_traits>

#include "hd.h"

namespace tandem::kernels::math {

/// The type in which T computes: itself for floating types, an unsigned type at least as wide for integers.
template <class T>
using Wrapping = std::conditional_t<std::is_floating_point_v<T>, T,
                                    std::conditional_t<sizeof(T) == 8, std::uint64_t, std::uint32_t>>;

template <class T>
TANDEM_HD T add(T a, T b) {
  return static_cast<T>(static_cast<Wrapping<T>>(a) + static_cast<Wrapping<T>>(b));
}
template <class T>
TANDEM_HD T sub(T a, T b) {
  return static_cast<T>(static_cast<Wrapping<T>>(a) - static_cast<Wrapping<T>>(b));
}
template <class T>
TANDEM_HD T mul(T a, T b) {
  return static_cast<T>(static_cast<Wrapping<T>>(a) * static_cast<Wrapping<T>>(b));
}

}  // namespace tandem::kernels::math
