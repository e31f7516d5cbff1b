#pragma once
// Tensors that lie one after another in a flat buffer. Internal.

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "../engine/tensor.h"

namespace tandem::parallel {

/// Elements that a tensor takes in a flat buffer: so many that the next one begins at a multiple of 64 bytes.
std::int64_t padded(const Tensor& t);
/// A tensor at an offset of a flat buffer, of which it uses its part alone, and has a version of its own.
Tensor slot(const Tensor& flat, const Shape& shape, std::int64_t offset);

/// Where tensors lie in flat buffers, one per dtype.
class Slots {
 public:
  /// The place of one more.
  void add(const Tensor& like);
  /// Buffers on a device: one for each dtype that has a place.
  std::vector<Tensor> buffers(Device device) const;
  /// The tensors in such buffers, in the order of add().
  std::vector<Tensor> tensors(std::span<const Tensor> buffers) const;

 private:
  struct Place {
    Shape shape;
    DType dtype;
    std::int64_t offset;
  };

  std::array<std::int64_t, kDTypeCount> sizes_{};
  std::vector<Place> places_;
};

}  // namespace tandem::parallel
