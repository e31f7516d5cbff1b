#pragma once
// Conversion between element types.

#include <cstdint>
#include <type_traits>

#include "hd.h"

namespace tandem::kernels::math {

/// Floating to integer truncates toward zero, anything to bool asks whether it is not zero. Integers wrap around.
template <class To, class From>
TANDEM_HD To convert(From x) {
  if constexpr (std::is_same_v<To, bool>) {
    return x != From(0);
  } else if constexpr (std::is_floating_point_v<From> && sizeof(To) == 1) {
    return static_cast<To>(static_cast<std::int32_t>(x));  // so that -1.0 becomes 255, as from an integer -1
  } else {
    return static_cast<To>(x);
  }
}

}  // namespace tandem::kernels::math
