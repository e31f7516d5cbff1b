#pragma once
// What a kernel sees of a tensor, and of a scalar.

#include <cstdint>
#include <type_traits>

#include "dtype.h"

namespace tandem {

inline constexpr int kMaxDims = 8;

/// A number with its kind (bool, integer or floating), as PyTorch's Scalar.
class Scalar {
 public:
  template <class T>
  requires std::is_arithmetic_v<T>
  constexpr Scalar(T v) {  // NOLINT(google-explicit-constructor): f(x, 2) is the point of the type
    if constexpr (std::is_same_v<T, bool>) {
      kind_ = DType::Bool;
      int_ = v;
      float_ = v;
    } else if constexpr (std::is_integral_v<T>) {
      kind_ = DType::Int64;
      int_ = static_cast<std::int64_t>(v);
      float_ = static_cast<double>(v);
    } else {
      kind_ = DType::Float64;
      float_ = static_cast<double>(v);
    }
  }
  /// Bool, Int64 or Float64.
  constexpr DType kind() const { return kind_; }
  template <class T>
  constexpr T to() const {
    if (kind_ == DType::Float64) return static_cast<T>(float_);
    return static_cast<T>(int_);
  }

 private:
  DType kind_ = DType::Float64;
  std::int64_t int_ = 0;
  double float_ = 0;
};

namespace kernels {

/// A strided array. `shape` and `strides` (in elements, may be zero or negative) stay owned by the caller.
struct View {
  void* data = nullptr;
  const std::int64_t* shape = nullptr;
  const std::int64_t* strides = nullptr;
  int ndim = 0;
  DType dtype = DType::Float32;

  template <class T>
  T* as() const {
    return static_cast<T*>(data);
  }
  std::int64_t numel() const {
    std::int64_t n = 1;
    for (int i = 0; i < ndim; ++i) n *= shape[i];
    return n;
  }
};

/// An operand of an elementwise kernel: a view, or a scalar that is converted to the kernel's type.
struct Operand {
  Operand(const View& v) : view(v) {}                       // NOLINT(google-explicit-constructor)
  Operand(const Scalar& s) : is_scalar(true), scalar(s) {}  // NOLINT(google-explicit-constructor)
  View view{};
  bool is_scalar = false;
  Scalar scalar{0};
};

}  // namespace kernels
}  // namespace tandem
