#pragma once
// How far results of CUDA devices may be from those of CPU devices.

#include <cmath>
#include <cstdint>
#include <limits>

#include "../kernels/dtype.h"

namespace tandem::test {

/// Relative to 1 + |value|, for values of the order of 1: single elements differ by up to 8 roundings, and sums over
/// `terms` elements, which run in another order, by the square root of their number more. Tests of what is computed in
/// several steps state a small multiple. Integers and random numbers are equal.
template <class T>
double device_tolerance(std::int64_t terms = 1) {
  return (8 + std::sqrt(static_cast<double>(terms))) * static_cast<double>(std::numeric_limits<T>::epsilon());
}
inline double device_tolerance(DType dtype, std::int64_t terms = 1) {
  return dtype == DType::Float32   ? device_tolerance<float>(terms)
         : dtype == DType::Float64 ? device_tolerance<double>(terms)
                                   : 0;
}

}  // namespace tandem::test
