// TensorDataset.

#include "dataset.h"

#include <utility>
#include <vector>

#include "../engine/error.h"
#include "../engine/ops.h"

namespace tandem::data {

TensorDataset::TensorDataset(Tensor inputs, Tensor targets) : inputs_(std::move(inputs)), targets_(std::move(targets)) {
  const auto got = [&] { return "TensorDataset: inputs " + describe(inputs_) + ", targets " + describe(targets_); };
  if (!inputs_.defined() || !targets_.defined()) throw ValueError(got() + "; two tensors are wanted");
  if (inputs_.dim() == 0 || targets_.dim() == 0 || inputs_.size(0) != targets_.size(0)) {
    throw ShapeError(got() + "; the same first size is wanted");
  }
}

Batch TensorDataset::get(std::span<const std::int64_t> indices) const {
  const std::vector<std::int64_t> values(indices.begin(), indices.end());
  const Shape shape{static_cast<std::int64_t>(values.size())};
  const Tensor index = from_vector(values, shape, inputs_.device());
  const Tensor target_index = targets_.device() == inputs_.device() ? index : index.to(targets_.device());
  return {index_select(inputs_, 0, index), index_select(targets_, 0, target_index)};
}

}  // namespace tandem::data
