#pragma once
// Arrays for kernel tests: owned memory with a shape, and views of it.

#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include "../../kernels/backend.h"

namespace tandem::kernels {

template <class T>
struct Array {
  explicit Array(std::vector<std::int64_t> sizes) : shape(std::move(sizes)), strides(shape.size()) {
    std::int64_t step = 1;
    for (std::size_t d = shape.size(); d-- > 0; step *= shape[d]) strides[d] = step;
    data.resize(static_cast<std::size_t>(step));
    clear();
  }
  Array(std::vector<std::int64_t> sizes, std::vector<T> values) : Array(std::move(sizes)) { data = std::move(values); }

  /// Values that no kernel may leave behind.
  void clear() {
    for (T& v : data) v = std::numeric_limits<T>::has_quiet_NaN ? std::numeric_limits<T>::quiet_NaN() : T(-77);
  }
  /// Small integers: sums of their products are exact in float.
  Array& integers(unsigned seed, int low = -4, int high = 4) {
    std::mt19937 random(seed);
    for (T& v : data) v = static_cast<T>(low + static_cast<int>(random() % static_cast<unsigned>(high - low + 1)));
    return *this;
  }
  Array& normal(unsigned seed, double mean = 0, double std = 1) {
    std::mt19937 random(seed);
    std::normal_distribution<double> draw(mean, std);
    for (T& v : data) v = static_cast<T>(draw(random));
    return *this;
  }

  View view() { return {data.data(), shape.data(), strides.data(), static_cast<int>(shape.size()), dtype_of<T>()}; }
  View null() {
    View v = view();
    v.data = nullptr;
    return v;
  }
  T& operator[](std::int64_t i) { return data[static_cast<std::size_t>(i)]; }
  const T& operator[](std::int64_t i) const { return data[static_cast<std::size_t>(i)]; }
  std::int64_t size() const { return static_cast<std::int64_t>(data.size()); }
  bool same_bits(const Array& other) const {
    return data.size() == other.data.size() &&
           (data.empty() || std::memcmp(data.data(), other.data.data(), data.size() * sizeof(T)) == 0);
  }

  std::vector<std::int64_t> shape, strides;
  std::vector<T> data;
};

}  // namespace tandem::kernels
