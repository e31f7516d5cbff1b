#pragma once
// Arrays that the CPU and a CUDA device have both, for tests that compare the two backends.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <random>
#include <type_traits>
#include <utility>
#include <vector>

#include "device_array.h"

namespace tandem::kernels {

using Index = std::int64_t;
using Sizes = std::vector<Index>;

/// Repeated: the middle dimension shows one element again and again; for inputs only.
enum class Layout { Contiguous, Shifted, Transposed, Reversed, Spaced, Repeated };
constexpr Layout kLayouts[] = {Layout::Contiguous, Layout::Shifted, Layout::Transposed, Layout::Reversed,
                               Layout::Spaced};

/// An array of some layout on the CPU and, from the first use of gpu() on, on a device. Elements between its own are
/// compared, too.
template <class T>
class Twin {
 public:
  using Stored = std::conditional_t<std::is_same_v<T, bool>, std::uint8_t, T>;

  explicit Twin(Sizes sizes, Layout layout = Layout::Contiguous)
      : shape_(std::move(sizes)), strides_(shape_.size()), memory_(place(layout)) {}

  /// Multiples of 1/8, whole numbers for integers.
  Twin& eighths(unsigned seed, double low = -4, double high = 4) {
    std::mt19937 random(seed);
    std::uniform_real_distribution<double> draw(low, high);
    for (Stored& v : memory_.data) {
      const double x = std::floor(draw(random) * 8) / 8;
      v = static_cast<Stored>(std::is_same_v<T, bool> ? x > 0 : std::is_unsigned_v<T> ? std::abs(x) : x);
    }
    return *this;
  }
  Twin& uniform(unsigned seed, double low, double high) {
    std::mt19937 random(seed);
    std::uniform_real_distribution<double> draw(low, high);
    for (Stored& v : memory_.data) v = static_cast<Stored>(std::is_same_v<T, bool> ? draw(random) > 0 : draw(random));
    return *this;
  }
  Twin& normal(unsigned seed, double mean = 0, double std = 1) {
    memory_.normal(seed, mean, std);
    return *this;
  }
  Twin& set(Index i, double value) {
    (*this)[i] = static_cast<Stored>(value);
    return *this;
  }
  View cpu() { return view(memory_.data.data()); }
  View gpu() {
    if (device_ == nullptr) device_ = std::make_unique<DeviceArray<Stored>>(memory_);
    return view(device_->data());
  }
  View null() {
    View v = cpu();
    v.data = nullptr;
    return v;
  }
  bool same_bits() const { return device_->host().same_bits(memory_); }
  /// Whether device and CPU have the same, element by element; NaN is NaN, whatever its bits.
  bool same() {
    const Array<Stored> there = device_->host();
    for (Index i = 0; i < memory_.size(); ++i) {
      if (!(there[i] == memory_[i]) && !(there[i] != there[i] && memory_[i] != memory_[i])) return false;
    }
    return true;
  }
  /// The largest |a - b| / (1 + |b|); infinite if one is NaN and the other is not.
  double distance() {
    const Array<Stored> there = device_->host();
    double largest = 0;
    for (Index i = 0; i < memory_.size(); ++i) {
      const double a = static_cast<double>(there[i]), b = static_cast<double>(memory_[i]);
      if (a == b || (std::isnan(a) && std::isnan(b))) continue;
      const double d = std::abs(a - b) / (1 + std::abs(b));
      largest = std::max(largest, std::isnan(d) ? std::numeric_limits<double>::infinity() : d);
    }
    return largest;
  }
  Array<Stored> device() { return device_->host(); }
  /// The i-th element in row-major order.
  Stored& operator[](Index i) {
    Index at = start_;
    for (std::size_t d = shape_.size(); d-- > 0; i /= shape_[d]) at += i % shape_[d] * strides_[d];
    return memory_[at];
  }
  Index size() { return cpu().numel(); }

 private:
  View view(Stored* data) const {
    return {data + start_, shape_.data(), strides_.data(), static_cast<int>(shape_.size()), dtype_of<T>()};
  }
  Array<Stored> place(Layout layout) {
    const std::size_t n = shape_.size();
    Index step = layout == Layout::Spaced ? 3 : 1;
    for (std::size_t i = 0; i < n; ++i) {
      const std::size_t d = layout == Layout::Transposed ? i : n - 1 - i;
      strides_[d] = step;
      step *= std::max<Index>(shape_[d], 1);
    }
    if (layout == Layout::Shifted) start_ = 1;
    if (layout == Layout::Reversed) {
      for (std::size_t d = 0; d < n; ++d) {
        if (shape_[d] > 0) start_ += (shape_[d] - 1) * strides_[d];
        strides_[d] = -strides_[d];
      }
    }
    if (layout == Layout::Repeated && n > 0) strides_[n / 2] = 0;
    return Array<Stored>({step + 1});
  }

  Index start_ = 0;
  Sizes shape_, strides_;
  Array<Stored> memory_;
  std::unique_ptr<DeviceArray<Stored>> device_;
};

}  // namespace tandem::kernels
