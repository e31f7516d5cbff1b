#pragma once
// Sizes and strides: up to kMaxDims numbers held inline.

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <vector>

#include "../kernels/view.h"

namespace tandem {

/// A short list of integers: the sizes of a tensor, its strides, or a list of dimensions.
/// More than kMaxDims entries are a ShapeError.
class Shape {
 public:
  Shape() = default;
  Shape(std::initializer_list<std::int64_t> v) : Shape(std::span(v.begin(), v.size())) {}
  Shape(const std::vector<std::int64_t>& v) : Shape(std::span(v)) {}  // NOLINT(google-explicit-constructor)
  explicit Shape(std::span<const std::int64_t> v);

  int size() const { return n_; }
  bool empty() const { return n_ == 0; }
  std::int64_t& operator[](int i) { return v_[i]; }
  std::int64_t operator[](int i) const { return v_[i]; }
  std::int64_t back() const { return v_[n_ - 1]; }
  const std::int64_t* data() const { return v_; }
  const std::int64_t* begin() const { return v_; }
  const std::int64_t* end() const { return v_ + n_; }
  std::int64_t* begin() { return v_; }
  std::int64_t* end() { return v_ + n_; }

  void push_back(std::int64_t x);
  void insert(int at, std::int64_t x);
  void erase(int at);
  /// The product of the entries, 1 for none.
  std::int64_t numel() const {
    std::int64_t n = 1;
    for (std::int64_t x : *this) n *= x;
    return n;
  }

  friend bool operator==(const Shape& a, const Shape& b) { return std::equal(a.begin(), a.end(), b.begin(), b.end()); }

 private:
  std::int64_t v_[kMaxDims] = {};
  int n_ = 0;
};

/// "(2, 3)".
std::string str(const Shape& shape);

/// Row-major strides.
Shape contiguous_strides(const Shape& shape);

/// Number of elements of a new tensor; ValueError when a size is negative or the product exceeds 2^63 - 1 bytes of
/// `item` each. `op` is named in the message.
std::int64_t checked_numel(const char* op, const Shape& shape, std::size_t item);

/// The shape that `a` and `b` broadcast to (sizes aligned at the right, 1 stretches), or a ShapeError.
Shape broadcast_shapes(const char* op, const Shape& a, const Shape& b);

/// Maps a dimension in [-ndim, ndim) to [0, ndim), or throws IndexError. A 0-dim tensor takes -1 and 0.
int wrap_dim(const char* op, std::int64_t dim, int ndim);

}  // namespace tandem
