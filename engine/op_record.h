#pragma once
// One record per op: from it come the op's tests (values, first and second gradients, strided and empty inputs, every
// device), its line in the op table of the docs, and its benchmark.

#include <functional>
#include <string>
#include <vector>

#include "tensor.h"

namespace tandem {

/// An op applied to sample inputs.
struct OpSample {
  /// The same in PyTorch, as a Python expression of x0, x1, ... with F = torch.nn.functional. Several results: a tuple.
  std::string python;
  /// float64, or index and mask tensors. Values are small multiples of 1/32, away from kinks and ties.
  std::vector<Tensor> inputs;
  std::function<std::vector<Tensor>(const std::vector<Tensor>&)> call;
};

struct OpRecord {
  const char* name;
  /// What it computes, for the table in the docs.
  const char* text;
  /// Made anew on each call, on cpu:0.
  std::vector<OpSample> (*samples)();
  /// Whether the floating inputs have gradients.
  bool differentiable = true;
};

/// Every op of the library, family by family.
std::vector<OpRecord> op_records();

// ---- for writing records
/// Multiples of 1/16 about [-4, 4) in a fixed shuffled order, never 0; the first 61 are distinct.
Tensor sample(const Shape& shape, int variant = 0);
/// As sample, but positive, at least 1/8.
Tensor sample_positive(const Shape& shape, int variant = 0);
/// Indices in [0, limit) that repeat and are out of order.
Tensor sample_index(const Shape& shape, std::int64_t limit, int variant = 0);

using Inputs = std::vector<Tensor>;
template <class F>
OpSample make_sample(std::string python, Inputs inputs, F f) {
  return {std::move(python), std::move(inputs), [f](const Inputs& x) -> std::vector<Tensor> {
            auto result = f(x);
            if constexpr (std::is_same_v<decltype(result), Tensor>) {
              return {std::move(result)};
            } else if constexpr (std::is_same_v<decltype(result), std::pair<Tensor, Tensor>>) {
              return {std::move(result.first), std::move(result.second)};
            } else {
              return result;
            }
          }};
}

// ---- the families, each in the file of its ops
std::vector<OpRecord> unary_records();
std::vector<OpRecord> binary_records();
std::vector<OpRecord> compare_records();
std::vector<OpRecord> reduce_records();
std::vector<OpRecord> matmul_records();
std::vector<OpRecord> view_records();
std::vector<OpRecord> join_records();
std::vector<OpRecord> index_records();
std::vector<OpRecord> loss_records();
std::vector<OpRecord> conv_records();
std::vector<OpRecord> norm_records();

}  // namespace tandem
