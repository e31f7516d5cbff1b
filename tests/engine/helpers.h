#pragma once
// What the engine's tests share: op samples evaluated with gradients, the same values in other layouts, and devices.

#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "../../engine/autograd.h"
#include "../../engine/error.h"
#include "../../engine/op_record.h"
#include "../../engine/ops.h"
#include "../devices.h"
#include "../tolerance.h"

namespace tandem::test {

/// Calls f(device) for two devices of every kind there is.
template <class F>
void for_each_device(F f) {
  for (const DeviceType type : device_kinds()) {
    for (int i = 0; i < std::min(2, device_count(type)); ++i) f(Device{type, static_cast<std::int16_t>(i)});
  }
}

/// A float64 tensor of given values.
inline Tensor f64(const std::vector<double>& values, const Shape& shape, Device device = get_default_device()) {
  return from_vector(values, shape, device);
}
inline Tensor f64(const std::vector<double>& values) {
  return from_vector(values, {static_cast<std::int64_t>(values.size())});
}
/// As f64, as a leaf that needs a gradient.
inline Tensor leaf(const std::vector<double>& values, const Shape& shape, Device device = get_default_device()) {
  return f64(values, shape, device).requires_grad_();
}
inline Tensor leaf(const std::vector<double>& values) { return f64(values).requires_grad_(); }

/// Fixed gradients for an output: multiples of 1/8, none of them 0.
inline Tensor output_gradient(const Tensor& out) {
  std::vector<double> v(static_cast<std::size_t>(out.numel()));
  for (std::size_t i = 0; i < v.size(); ++i) v[i] = static_cast<double>((i * 7 + 3) % 11) / 4 - 1.375;
  return f64(v, out.sizes()).to(out.dtype()).to(out.device());
}

/// New leaves with the values of the inputs; the floating ones need gradients.
inline Inputs leaves(const Inputs& inputs, Device device = get_default_device(), DType floating = kFloat64) {
  Inputs result;
  for (const Tensor& x : inputs) {
    const bool numbers = is_floating(x.dtype());
    result.push_back((numbers ? x.to(floating) : x).to(device).clone());
    if (numbers) result.back().requires_grad_();
  }
  return result;
}

struct Evaluation {
  std::vector<Tensor> outputs;
  std::vector<Tensor> gradients;  // of each input; undefined where it has none
};

/// A sample's results, and the gradients of its inputs for fixed gradients of its outputs.
inline Evaluation evaluate(const OpSample& sample, const Inputs& inputs, BackwardOptions options = {}) {
  Evaluation e{sample.call(inputs), std::vector<Tensor>(inputs.size())};
  std::vector<Tensor> roots;
  std::vector<Tensor> gradients;
  for (const Tensor& out : e.outputs) {
    if (!out.requires_grad()) continue;
    roots.push_back(out);
    gradients.push_back(output_gradient(out));
  }
  if (roots.empty()) return e;
  std::vector<Tensor> wanted;
  for (const Tensor& x : inputs) {
    if (x.requires_grad()) wanted.push_back(x);
  }
  const std::vector<Tensor> result = grad(roots, wanted, gradients, options, true);
  for (std::size_t i = 0, k = 0; i < inputs.size(); ++i) {
    if (inputs[i].requires_grad()) e.gradients[i] = result[k++];
  }
  return e;
}

/// Whether shape, dtype and every bit agree; NaN equals itself.
inline bool same_bits(const Tensor& a, const Tensor& b) {
  if (a.defined() != b.defined()) return false;
  if (!a.defined()) return true;
  if (a.sizes() != b.sizes() || a.dtype() != b.dtype()) return false;
  const Tensor x = a.detach().to(cpu()).contiguous();
  const Tensor y = b.detach().to(cpu()).contiguous();
  return x.nbytes() == 0 || std::memcmp(x.data_ptr(), y.data_ptr(), x.nbytes()) == 0;
}

/// allclose with both undefined counting as close, wherever they are.
inline bool close(const Tensor& a, const Tensor& b, double rtol, double atol) {
  if (a.defined() != b.defined()) return false;
  return !a.defined() || allclose(a.detach().to(cpu()), b.detach().to(cpu()), rtol, atol, true);
}

/// Whether the elements are these, in row-major order, up to a relative 1e-12.
inline bool has_values(const Tensor& t, const std::vector<double>& wanted, double tolerance = 1e-12) {
  const std::vector<double> v = t.detach().to_vector();
  if (v.size() != wanted.size()) return false;
  for (std::size_t i = 0; i < v.size(); ++i) {
    const bool same = v[i] == wanted[i] || (std::isnan(v[i]) && std::isnan(wanted[i]));
    if (!same && !(std::abs(v[i] - wanted[i]) <= tolerance * std::max(1.0, std::abs(wanted[i])))) return false;
  }
  return true;
}

/// What a Catch message shows of a tensor.
inline std::string text(const Tensor& t) {
  if (!t.defined()) return "undefined";
  std::string out = describe(t) + ":";
  for (const double v : t.detach().to_vector()) out += " " + std::to_string(v);
  return out;
}

/// The message of the E that f throws, or a text that says what happened instead.
template <class E, class F>
std::string message_of(F f) {
  try {
    f();
  } catch (const E& e) {
    return e.what();
  } catch (const std::exception& e) {
    return "another exception: " + std::string(e.what());
  }
  return "no exception";
}

}  // namespace tandem::test

/// `expression` throws Type with a message that contains `part`.
#define CHECK_ERROR(expression, Type, part) \
  CHECK_THAT(tandem::test::message_of<Type>([&] { static_cast<void>(expression); }), ContainsSubstring(part))
