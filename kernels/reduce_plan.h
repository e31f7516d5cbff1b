#pragma once
// How a reduction walks its input: loops over what stays, and loops over what is summed.

#include "elementwise_plan.h"

namespace tandem::kernels {

/// Both parts have the input as operand 0 and go from its densest dimension outward. A part without dimensions is one
/// loop of one step.
template <int Outputs>
struct ReducePlan {
  ElementwisePlan<1 + Outputs> kept;  ///< Operands after the input: the outputs.
  ElementwisePlan<1> reduced;

  /// Whether neighbours in memory belong to different results.
  bool by_columns() const {
    return kept.numel > 1 && plan_detail::magnitude(kept.strides[0][0]) < plan_detail::magnitude(reduced.strides[0][0]);
  }
};

/// The outputs have the input's rank, with size 1 where reduced, and one shape.
template <class... Views>
ReducePlan<static_cast<int>(sizeof...(Views))> plan_reduce(const View& in, const Views&... outputs) {
  constexpr int n = static_cast<int>(sizeof...(Views));
  const View* const outs[n] = {&outputs...};
  ReducePlan<n> plan;
  plan.kept.ndim = plan.reduced.ndim = 0;
  plan.kept.numel = plan.reduced.numel = 1;
  for (int d = in.ndim - 1; d >= 0; --d) {
    if (in.shape[d] == 1) continue;
    if (outs[0]->shape[d] == 1) {
      int i = plan.reduced.ndim++;
      plan.reduced.numel *= plan.reduced.shape[i] = in.shape[d];
      plan.reduced.strides[i][0] = in.strides[d];
    } else {
      int i = plan.kept.ndim++;
      plan.kept.numel *= plan.kept.shape[i] = in.shape[d];
      plan.kept.strides[i][0] = in.strides[d];
      for (int k = 0; k < n; ++k) plan.kept.strides[i][1 + k] = outs[k]->strides[d];
    }
  }
  auto finish = [](auto& part) {
    if (part.ndim == 0 || part.numel == 0) {
      part.ndim = 1;
      part.shape[0] = part.numel;
      for (std::int64_t& stride : part.strides[0]) stride = 0;
    } else {
      plan_detail::sort_dims(part);
      plan_detail::merge_dims(part);
    }
  };
  finish(plan.kept);
  finish(plan.reduced);
  if (plan.reduced.numel == 0) {
    // Nothing is read: the input's address, null perhaps, is not to be moved.
    for (int i = 0; i < plan.kept.ndim; ++i) plan.kept.strides[i][0] = 0;
  }
  return plan;
}

}  // namespace tandem::kernels
