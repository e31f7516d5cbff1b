#pragma once
// The end of the tape: the node that adds up the gradient of a leaf. Internal.

#include "autograd.h"

namespace tandem {

class Accumulate final : public Node {
 public:
  explicit Accumulate(const TensorImpl& leaf);

  bool is_accumulator() const override { return true; }
  void apply(GradContext& context) override;
  Tensor grad() const;
  void set_grad(Tensor grad);
  /// The leaf has moved to another storage, dtype or device.
  void retarget(const TensorImpl& leaf);

 private:
  mutable std::mutex mutex_;
  Tensor grad_;
};

/// The accumulator of a leaf, made when there is none.
Accumulate& accumulator_of(TensorImpl& leaf);

/// Adds `value` to `sum`, in place where nobody else can see it; the version is that of a change in place anyway.
/// Records if grad mode is on.
void accumulate(Tensor& sum, Tensor value);
/// Whether the handle is the only way to reach its elements.
bool is_exclusive(const Tensor& t);

}  // namespace tandem
