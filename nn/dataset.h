#pragma once
// Data sets: numbered examples that are fetched in batches.

#include <cstdint>
#include <span>

#include "../engine/tensor.h"

namespace tandem::data {

/// Some examples, stacked along dimension 0.
struct Batch {
  Tensor input, target;
};

class Dataset {
 public:
  virtual ~Dataset() = default;
  virtual std::int64_t size() const = 0;
  /// The examples with these numbers, each in [0, size()), in this order. A loader calls it from several threads at
  /// once, with the tape off; the result should depend on the indices alone.
  virtual Batch get(std::span<const std::int64_t> indices) const = 0;
};

/// Example i is row i of two tensors, which may be on any device; batches are on theirs.
class TensorDataset : public Dataset {
 public:
  /// Throws ShapeError if the tensors have no rows or differ in number of rows, ValueError if one is undefined.
  TensorDataset(Tensor inputs, Tensor targets);

  std::int64_t size() const override { return inputs_.size(0); }
  Batch get(std::span<const std::int64_t> indices) const override;

  const Tensor& inputs() const { return inputs_; }
  const Tensor& targets() const { return targets_; }

 private:
  Tensor inputs_, targets_;
};

}  // namespace tandem::data
