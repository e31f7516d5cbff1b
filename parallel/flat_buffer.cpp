#include "flat_buffer.h"

#include <algorithm>

#include "../engine/ops_internal.h"

namespace tandem::parallel {

std::int64_t padded(const Tensor& t) {
  const auto line = static_cast<std::int64_t>(64 / size_of(t.dtype()));
  return (std::max<std::int64_t>(t.numel(), 1) + line - 1) / line * line;
}

Tensor slot(const Tensor& flat, const Shape& shape, std::int64_t offset) {
  Tensor t = alias_of(view_of(flat, shape, contiguous_strides(shape), offset));
  t.impl()->exclusive = true;
  t.impl()->version = make_ref<Version>();
  return t;
}

void Slots::add(const Tensor& like) {
  std::int64_t& size = sizes_[static_cast<std::size_t>(like.dtype())];
  places_.push_back({like.sizes(), like.dtype(), size});
  size += padded(like);
}

std::vector<Tensor> Slots::buffers(Device device) const {
  std::vector<Tensor> made;
  for (int t = 0; t < kDTypeCount; ++t) {
    const std::int64_t size = sizes_[static_cast<std::size_t>(t)];
    if (size > 0) made.push_back(empty({size}, static_cast<DType>(t), device));
  }
  return made;
}

std::vector<Tensor> Slots::tensors(std::span<const Tensor> buffers) const {
  std::vector<Tensor> all;
  for (const Place& p : places_) {
    const auto in = std::find_if(buffers.begin(), buffers.end(), [&](const Tensor& b) { return b.dtype() == p.dtype; });
    all.push_back(slot(*in, p.shape, p.offset));
  }
  return all;
}

}  // namespace tandem::parallel
