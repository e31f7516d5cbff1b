#pragma once
// Element types, and the one switch from a run-time dtype to a compile-time type.

#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace tandem {

/// In promotion order: within a kind, the later type wins. Sixteen-bit types fit between Int64 and Float32.
enum class DType : std::uint8_t { Bool, UInt8, Int32, Int64, Float32, Float64 };

inline constexpr DType kBool = DType::Bool;
inline constexpr DType kUInt8 = DType::UInt8;
inline constexpr DType kInt32 = DType::Int32;
inline constexpr DType kInt64 = DType::Int64;
inline constexpr DType kFloat32 = DType::Float32;
inline constexpr DType kFloat64 = DType::Float64;
inline constexpr int kDTypeCount = 6;

constexpr std::size_t size_of(DType t) {
  constexpr std::size_t bytes[kDTypeCount] = {1, 1, 4, 8, 4, 8};
  return bytes[static_cast<int>(t)];
}
constexpr const char* name_of(DType t) {
  constexpr const char* names[kDTypeCount] = {"bool", "uint8", "int32", "int64", "float32", "float64"};
  return names[static_cast<int>(t)];
}
constexpr bool is_floating(DType t) { return t >= DType::Float32; }

template <class T>
struct TypeTag {
  using type = T;
};

template <class T>
constexpr DType dtype_of() {
  if constexpr (std::is_same_v<T, bool>) {
    return DType::Bool;
  } else if constexpr (std::is_same_v<T, std::uint8_t>) {
    return DType::UInt8;
  } else if constexpr (std::is_same_v<T, std::int32_t>) {
    return DType::Int32;
  } else if constexpr (std::is_same_v<T, std::int64_t> || std::is_same_v<T, long long>) {
    return DType::Int64;
  } else if constexpr (std::is_same_v<T, float>) {
    return DType::Float32;
  } else {
    static_assert(std::is_same_v<T, double>, "not an element type of Tandem");
    return DType::Float64;
  }
}

/// Calls `f(TypeTag<T>{})` with the C++ type of `t`.
template <class F>
decltype(auto) visit_dtype(DType t, F&& f) {
  switch (t) {
    case DType::Bool: return f(TypeTag<bool>{});
    case DType::UInt8: return f(TypeTag<std::uint8_t>{});
    case DType::Int32: return f(TypeTag<std::int32_t>{});
    case DType::Int64: return f(TypeTag<std::int64_t>{});
    case DType::Float32: return f(TypeTag<float>{});
    case DType::Float64: break;
  }
  return f(TypeTag<double>{});
}

/// As visit_dtype, for float32 and float64 only; the caller has checked.
template <class F>
decltype(auto) visit_floating(DType t, F&& f) {
  if (t == DType::Float32) return f(TypeTag<float>{});
  return f(TypeTag<double>{});
}

}  // namespace tandem
