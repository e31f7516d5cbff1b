#pragma once
// How an elementwise kernel walks its operands: as few loops as their shapes and strides allow.

#include <cstdint>

#include "view.h"

namespace tandem::kernels {

/// Loops over N arrays, the output first, from the innermost dimension outward.
template <int N>
struct ElementwisePlan {
  std::int64_t numel;
  int ndim;  ///< At least 1.
  std::int64_t shape[kMaxDims];
  std::int64_t strides[kMaxDims][N];
};

namespace plan_detail {

constexpr std::int64_t magnitude(std::int64_t x) { return x < 0 ? -x : x; }

/// One loop, if `out` is contiguous and every input has its layout or is a single element of no dimensions.
template <int N>
bool plan_flat(ElementwisePlan<N>& plan, const View* const (&views)[N]) {
  const View& out = *views[0];
  for (int k = 1; k < N; ++k) {
    if (views[k]->ndim != 0 && views[k]->ndim != out.ndim) return false;
  }
  std::int64_t n = 1;
  for (int d = out.ndim - 1; d >= 0; --d) {
    std::int64_t size = out.shape[d];
    if (size == 1) {
      for (int k = 1; k < N; ++k) {
        if (views[k]->ndim != 0 && views[k]->shape[d] != 1) return false;
      }
      continue;
    }
    if (out.strides[d] != n) return false;
    for (int k = 1; k < N; ++k) {
      if (views[k]->ndim != 0 && (views[k]->shape[d] != size || views[k]->strides[d] != n)) return false;
    }
    n *= size;
  }
  plan.numel = n;
  plan.ndim = 1;
  plan.shape[0] = n;
  for (int k = 0; k < N; ++k) plan.strides[0][k] = views[k]->ndim != 0 || k == 0 ? 1 : 0;
  return true;
}

/// Dimensions of size 1 fall out, inputs repeat along dimensions that they lack.
template <int N>
void plan_broadcast(ElementwisePlan<N>& plan, const View* const (&views)[N]) {
  const View& out = *views[0];
  plan.numel = out.numel();
  plan.ndim = 0;
  for (int d = out.ndim - 1; d >= 0; --d) {
    if (out.shape[d] == 1) continue;
    int i = plan.ndim++;
    plan.shape[i] = out.shape[d];
    for (int k = 0; k < N; ++k) {
      int own = d - (out.ndim - views[k]->ndim);
      plan.strides[i][k] = own < 0 || views[k]->shape[own] == 1 ? 0 : views[k]->strides[own];
    }
  }
}

/// Puts the dimension in which the output is densest innermost.
template <int N>
void sort_dims(ElementwisePlan<N>& plan) {
  for (int i = 1; i < plan.ndim; ++i) {
    for (int j = i; j > 0 && magnitude(plan.strides[j][0]) < magnitude(plan.strides[j - 1][0]); --j) {
      std::int64_t size = plan.shape[j];
      plan.shape[j] = plan.shape[j - 1];
      plan.shape[j - 1] = size;
      for (int k = 0; k < N; ++k) {
        std::int64_t stride = plan.strides[j][k];
        plan.strides[j][k] = plan.strides[j - 1][k];
        plan.strides[j - 1][k] = stride;
      }
    }
  }
}

/// Makes one loop of neighbours that step evenly in every operand.
template <int N>
void merge_dims(ElementwisePlan<N>& plan) {
  int last = 0;
  for (int i = 1; i < plan.ndim; ++i) {
    bool even = true;
    for (int k = 0; k < N; ++k) even &= plan.strides[i][k] == plan.strides[last][k] * plan.shape[last];
    if (even) {
      plan.shape[last] *= plan.shape[i];
    } else {
      ++last;
      plan.shape[last] = plan.shape[i];
      for (int k = 0; k < N; ++k) plan.strides[last][k] = plan.strides[i][k];
    }
  }
  plan.ndim = last + 1;
}

}  // namespace plan_detail

/// The loops for `out` and inputs that broadcast to its shape.
template <class... Views>
ElementwisePlan<1 + sizeof...(Views)> plan_elementwise(const View& out, const Views&... inputs) {
  constexpr int n = 1 + static_cast<int>(sizeof...(Views));
  const View* const views[n] = {&out, &inputs...};
  ElementwisePlan<n> plan;
  if (plan_detail::plan_flat(plan, views)) return plan;
  plan_detail::plan_broadcast(plan, views);
  if (plan.numel == 0 || plan.ndim == 0) {
    plan.ndim = 1;
    plan.shape[0] = plan.numel;
    for (int k = 0; k < n; ++k) plan.strides[0][k] = 0;
    return plan;
  }
  plan_detail::sort_dims(plan);
  plan_detail::merge_dims(plan);
  return plan;
}

/// Calls f(offsets, n) for the stretches of the innermost dimension that cover elements begin <= i < end of the plan;
/// offsets[k] is where operand k starts, n how many elements follow at stride plan.strides[0][k].
template <int N, class F>
void for_each_row(const ElementwisePlan<N>& plan, std::int64_t begin, std::int64_t end, const F& f) {
  std::int64_t index[kMaxDims];
  std::int64_t offsets[N] = {};
  std::int64_t rest = begin;
  for (int d = 0; d < plan.ndim; ++d) {
    bool outermost = d == plan.ndim - 1;
    index[d] = outermost ? rest : rest % plan.shape[d];
    if (!outermost) rest /= plan.shape[d];
    for (int k = 0; k < N; ++k) offsets[k] += index[d] * plan.strides[d][k];
  }
  for (std::int64_t i = begin; i < end;) {
    std::int64_t n = plan.shape[0] - index[0] < end - i ? plan.shape[0] - index[0] : end - i;
    f(offsets, n);
    i += n;
    if (i == end) return;
    for (int k = 0; k < N; ++k) offsets[k] -= index[0] * plan.strides[0][k];
    index[0] = 0;
    for (int d = 1; d < plan.ndim; ++d) {
      for (int k = 0; k < N; ++k) offsets[k] += plan.strides[d][k];
      if (++index[d] < plan.shape[d]) break;
      for (int k = 0; k < N; ++k) offsets[k] -= plan.shape[d] * plan.strides[d][k];
      index[d] = 0;
    }
  }
}

}  // namespace tandem::kernels
