#include "gradcheck.h"

#include <fmt/format.h>

#include <cmath>

#include "autograd.h"
#include "error.h"
#include "ops_internal.h"

namespace tandem {
namespace {

std::vector<Tensor> differentiable(const std::vector<Tensor>& outputs) {
  std::vector<Tensor> some;
  for (const Tensor& t : outputs) {
    if (t.defined() && t.requires_grad()) some.push_back(t);
  }
  return some;
}

/// d (sum of g * output) / d inputs; an unused input has zeros.
std::vector<Tensor> pull_back(const std::vector<Tensor>& outputs, const std::vector<Tensor>& gradients,
                              const std::vector<Tensor>& wanted, bool create_graph) {
  std::vector<Tensor> result = grad(outputs, wanted, gradients, {true, create_graph}, true);
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    if (!result[i].defined()) result[i] = zeros_like(wanted[i]);
  }
  return result;
}

std::vector<std::vector<double>> zeros_for(const std::vector<Tensor>& wanted) {
  std::vector<std::vector<double>> row;
  for (const Tensor& t : wanted) row.emplace_back(static_cast<std::size_t>(t.numel()));
  return row;
}

/// Outputs as one list of numbers.
std::vector<double> flat_values(const std::vector<Tensor>& outputs) {
  std::vector<double> all;
  for (const Tensor& t : outputs) {
    const std::vector<double> v = t.to_vector();
    all.insert(all.end(), v.begin(), v.end());
  }
  return all;
}

/// column[o] = d output[o] / d x[element], numerically. `which` says which outputs count.
std::vector<double> numeric_column(const TensorFunction& f, const std::vector<Tensor>& inputs,
                                   const std::vector<bool>& which, const Tensor& element, double eps) {
  const auto at = [&](double value) {
    copy_values(element, from_vector<double>({value}, {}, element.device()));
    std::vector<Tensor> kept;
    const std::vector<Tensor> outputs = f(inputs);
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      if (which[i]) kept.push_back(outputs[i]);
    }
    return flat_values(kept);
  };
  const double before = element.item();
  std::vector<double> column = at(before + eps);
  const std::vector<double> lower = at(before - eps);
  copy_values(element, from_vector<double>({before}, {}, element.device()));
  for (std::size_t i = 0; i < column.size(); ++i) column[i] = (column[i] - lower[i]) / (2 * eps);
  return column;
}

/// x's elements in row-major order, as tensors that the tape does not know.
std::vector<Tensor> elements_of(const Tensor& x) {
  std::vector<Tensor> all;
  Shape index = x.sizes();
  for (std::int64_t& i : index) i = 0;
  for (std::int64_t n = 0; n < x.numel(); ++n) {
    std::int64_t offset = x.storage_offset();
    for (int d = 0; d < x.dim(); ++d) offset += index[d] * x.strides()[d];
    all.push_back(alias_of(view_of(x, {}, {}, offset)));
    for (int d = x.dim() - 1; d >= 0 && ++index[d] == x.sizes()[d]; --d) index[d] = 0;
  }
  return all;
}

}  // namespace

GradcheckResult gradcheck(const TensorFunction& f, const std::vector<Tensor>& inputs, const GradcheckOptions& options) {
  std::vector<Tensor> wanted;
  std::vector<std::size_t> numbers;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    if (!inputs[i].defined() || !inputs[i].requires_grad()) continue;
    if (inputs[i].dtype() != kFloat64) throw DTypeError("gradcheck: wanted float64 inputs, got " + describe(inputs[i]));
    wanted.push_back(inputs[i]);
    numbers.push_back(i);
  }
  if (wanted.empty()) throw ValueError("gradcheck: no input requires a gradient");

  const std::vector<Tensor> all_outputs = f(inputs);
  std::vector<bool> which;
  std::vector<Tensor> outputs;
  for (const Tensor& t : all_outputs) {
    which.push_back(t.defined() && is_floating(t.dtype()));
    if (which.back()) outputs.push_back(t);
  }
  if (outputs.empty()) return {"there is no floating output"};

  // rows[o][i]: the gradient of input i when output element o has gradient 1.
  std::vector<std::vector<std::vector<double>>> rows;
  for (const Tensor& out : outputs) {
    for (std::int64_t e = 0; e < out.numel(); ++e) {
      std::vector<double> unit(static_cast<std::size_t>(out.numel()));
      unit[static_cast<std::size_t>(e)] = 1;
      if (!out.requires_grad()) {
        // Off the tape: a constant, or so it claims.
        rows.push_back(zeros_for(wanted));
        continue;
      }
      const Tensor g = to(from_vector(unit, out.sizes(), out.device()), out.dtype());
      const auto once = pull_back({out}, {g}, wanted, false);
      const auto again = pull_back({out}, {g}, wanted, false);
      std::vector<std::vector<double>> row;
      for (std::size_t i = 0; i < once.size(); ++i) {
        if (!equal(once[i], again[i]))
          return {fmt::format("the gradient of input {} differs from run to run", numbers[i])};
        row.push_back(once[i].to_vector());
      }
      rows.push_back(std::move(row));
    }
  }
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    const std::vector<Tensor> elements = elements_of(wanted[i]);
    for (std::size_t e = 0; e < elements.size(); ++e) {
      const std::vector<double> column = numeric_column(f, inputs, which, elements[e], options.eps);
      if (column.size() != rows.size()) return {"the number of output elements depends on the values of the inputs"};
      for (std::size_t o = 0; o < column.size(); ++o) {
        const double analytic = rows[o][i][e];
        const double numeric = column[o];
        if (!(std::abs(analytic - numeric) <= options.atol + options.rtol * std::abs(numeric))) {
          return {fmt::format("d output[{}] / d input {}[{}]: backward gives {:.8g}, differences give {:.8g}", o,
                              numbers[i], e, analytic, numeric)};
        }
      }
    }
  }
  return {};
}

GradcheckResult gradgradcheck(const TensorFunction& f, const std::vector<Tensor>& inputs,
                              const GradcheckOptions& options) {
  const std::vector<Tensor> outputs = differentiable(f(inputs));
  if (outputs.empty()) return {"no output depends on an input that requires a gradient"};
  std::vector<Tensor> all = inputs;
  for (std::size_t k = 0; k < outputs.size(); ++k) {
    // Fixed gradients without structure: multiples of 1/16 from -1 to 1.
    const Tensor& out = outputs[k];
    std::vector<double> v(static_cast<std::size_t>(out.numel()));
    for (std::size_t i = 0; i < v.size(); ++i) v[i] = static_cast<double>((i * 29 + 5 + 7 * k) % 33) / 16 - 1;
    all.push_back(from_vector(v, out.sizes(), out.device()).requires_grad_());
  }
  const std::size_t n = inputs.size();
  const TensorFunction backward_of = [&f, n](const std::vector<Tensor>& x) {
    const std::vector<Tensor> ins(x.begin(), x.begin() + static_cast<std::ptrdiff_t>(n));
    const std::vector<Tensor> gradients(x.begin() + static_cast<std::ptrdiff_t>(n), x.end());
    std::vector<Tensor> wanted;
    for (const Tensor& t : ins) {
      if (t.defined() && t.requires_grad()) wanted.push_back(t);
    }
    return pull_back(differentiable(f(ins)), gradients, wanted, true);
  };
  return gradcheck(backward_of, all, options);
}

}  // namespace tandem
