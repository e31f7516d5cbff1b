#pragma once
// Checks derivatives against central differences.

#include <functional>
#include <string>
#include <vector>

#include "tensor.h"

namespace tandem {

using TensorFunction = std::function<std::vector<Tensor>(const std::vector<Tensor>&)>;

struct GradcheckOptions {
  double eps = 1e-6;
  double atol = 1e-5;
  double rtol = 1e-3;
};

/// Empty if all is well, else which derivative differs, where, and by how much.
struct GradcheckResult {
  std::string error;
  explicit operator bool() const { return error.empty(); }
};

/// Compares the derivative of every floating output with respect to every input that requires a gradient with
/// (f(x + eps) - f(x - eps)) / (2 eps), element by element, as |a - n| <= atol + rtol |n|. Inputs that require a
/// gradient must be float64 CPU tensors (DTypeError), should be away from kinks, and their elements must not share
/// memory. Backward runs twice and must give the same bits.
GradcheckResult gradcheck(const TensorFunction& f, const std::vector<Tensor>& inputs,
                          const GradcheckOptions& options = {});

/// gradcheck of the backward pass of f, as a function of the inputs and of the outputs' gradients.
GradcheckResult gradgradcheck(const TensorFunction& f, const std::vector<Tensor>& inputs,
                              const GradcheckOptions& options = {});

}  // namespace tandem
