// Elementwise functions of one tensor. A function is its functor in kernels/math/unary.h and its record here: the
// derivative in differentiable functions, used when the backward pass is recorded itself; otherwise the functor's own
// derivative runs, in one pass. Both are tested to agree.

#include <fmt/format.h>

#include <cmath>
#include <numbers>

#include "../../kernels/math/unary.h"
#include "../op_record.h"
#include "../ops_internal.h"

namespace tandem {

using kernels::Saves;
using kernels::UnaryOp;

namespace {

/// d/dx gelu = Phi(x) + x phi(x), a function of its own since Phi is none of ours. Its derivative is phi(x) (2 - x^2).
Tensor gelu_slope(const Tensor& x) {
  Tensor out = empty_like(x);
  const Tensor one = ones_like(x);
  kernels::Stream stream = stream_for(x.device());
  backend(x.device()).unary_backward(stream, UnaryOp::Gelu, raw(out), raw(one), raw(x));
  if (needs_grad(x)) {
    record("gelu_slope", out, {x}, [x = saved(x)](GradContext& c) {
      const Tensor v = x.get(c);
      const Tensor squared = square(v);
      const Tensor density = exp(squared * -0.5) * (std::numbers::inv_sqrtpi / std::numbers::sqrt2);
      c.set(0, c.grad() * density * (2 - squared));
    });
  }
  return out;
}

struct UnaryRecord {
  OpRecord record;
  /// The gradient of the input; s is what the functor saves.
  Tensor (*backward)(const Tensor& g, const Tensor& s);
};

template <Tensor (*f)(const Tensor&), bool kPositive = false>
std::vector<OpSample> unary_samples(const char* python) {
  auto call = [](const Inputs& x) { return f(x[0]); };
  const auto make = kPositive ? sample_positive : sample;
  return {make_sample(python, {make({3, 5}, 0)}, call), make_sample(python, {make({}, 1)}, call),
          make_sample(python, {make({0, 4}, 0)}, call)};
}

// One line each: name, text, samples, derivative.
#define TANDEM_UNARY(name, text, python, positive, derivative)                                                  \
  {                                                                                                             \
    {#name, text, [] { return unary_samples<tandem::name, positive>(python); }, true},                          \
        [](const Tensor& g [[maybe_unused]], const Tensor& s [[maybe_unused]]) -> Tensor { return derivative; } \
  }

const UnaryRecord kRecords[] = {
    TANDEM_UNARY(neg, "-x", "-x0", false, neg(g)),
    TANDEM_UNARY(abs, "|x|", "x0.abs()", false, g* sign(s)),
    TANDEM_UNARY(sign, "-1, 0 or 1", "x0.sign()", false, g * 0),
    TANDEM_UNARY(exp, "e^x", "x0.exp()", false, g* s),
    TANDEM_UNARY(log, "natural logarithm", "x0.log()", true, g / s),
    TANDEM_UNARY(sqrt, "square root", "x0.sqrt()", true, g * 0.5 / s),
    TANDEM_UNARY(rsqrt, "1 / sqrt(x)", "x0.rsqrt()", true, g * -0.5 * s * s * s),
    TANDEM_UNARY(reciprocal, "1 / x", "x0.reciprocal()", false, neg(g) * s * s),
    TANDEM_UNARY(square, "x^2", "x0.square()", false, g * 2 * s),
    TANDEM_UNARY(sin, "sine", "x0.sin()", false, g* cos(s)),
    TANDEM_UNARY(cos, "cosine", "x0.cos()", false, neg(g) * sin(s)),
    TANDEM_UNARY(tanh, "hyperbolic tangent", "x0.tanh()", false, g*(1 - s * s)),
    TANDEM_UNARY(sigmoid, "1 / (1 + e^-x)", "x0.sigmoid()", false, g* s*(1 - s)),
    TANDEM_UNARY(relu, "max(x, 0)", "x0.relu()", false, where(gt(s, 0), g, 0)),
    TANDEM_UNARY(gelu, "x Phi(x)", "F.gelu(x0)", false, g* gelu_slope(s)),
    TANDEM_UNARY(silu, "x sigmoid(x)", "F.silu(x0)", false, g*(sigmoid(s) * (1 + s * (1 - sigmoid(s))))),
};
#undef TANDEM_UNARY

constexpr const UnaryRecord& record_of(UnaryOp op) { return kRecords[static_cast<int>(op)]; }

Tensor& run(UnaryOp op, Tensor& out, const Tensor& x) {
  kernels::Stream stream = stream_for(x.device());
  backend(x.device()).unary(stream, op, raw(out), raw(x));
  return out;
}

template <UnaryOp op, class Functor>
Tensor unary(const char* name, const Tensor& x) {
  check_defined(name, "the tensor", x);
  if (!is_floating(x.dtype())) {
    if constexpr (Functor::integers) {
      if (x.dtype() == kBool) throw DTypeError(fmt::format("{}: not defined for bool, got {}", name, describe(x)));
    } else {
      return unary<op, Functor>(name, to(x, kFloat32));
    }
  }
  Tensor out = new_tensor(x.sizes(), x.dtype(), x.device());
  run(op, out, x);
  if (needs_grad(x)) {
    constexpr Saves saves = Functor::saves;
    record(name, out, {x},
           [s = saves == Saves::Input    ? saved(x)
                : saves == Saves::Output ? saved_output(out)
                                         : Saved()](GradContext& c) {
             const Tensor kept = s.get(c);
             if (context().grad_enabled) {
               c.set(0, record_of(op).backward(c.grad(), kept));
               return;
             }
             const Tensor& g = c.grad();
             Tensor gx = new_tensor(g.sizes(), g.dtype(), g.device());
             kernels::Stream stream = stream_for(g.device());
             backend(g.device()).unary_backward(stream, op, raw(gx), raw(g), raw_or_null(kept));
             c.set(0, std::move(gx));
           });
  }
  return out;
}

template <UnaryOp op>
Tensor& unary_inplace(const char* name, Tensor& x, Tensor (*functional)(const Tensor&)) {
  check_floating(name, x);
  return change_inplace(
      name, x, {}, [&] { run(op, x, x); }, functional);
}

}  // namespace

#define TANDEM_DEFINE_UNARY(Functor, name) \
  Tensor name(const Tensor& x) { return unary<UnaryOp::Functor, kernels::Functor>(#name, x); }
TANDEM_UNARY_OPS(TANDEM_DEFINE_UNARY)
#undef TANDEM_DEFINE_UNARY

Tensor& Tensor::exp_() { return unary_inplace<UnaryOp::Exp>("exp_", *this, tandem::exp); }
Tensor& Tensor::log_() { return unary_inplace<UnaryOp::Log>("log_", *this, tandem::log); }
Tensor& Tensor::sqrt_() { return unary_inplace<UnaryOp::Sqrt>("sqrt_", *this, tandem::sqrt); }
Tensor& Tensor::abs_() { return unary_inplace<UnaryOp::Abs>("abs_", *this, tandem::abs); }
Tensor& Tensor::neg_() { return unary_inplace<UnaryOp::Neg>("neg_", *this, tandem::neg); }
Tensor& Tensor::tanh_() { return unary_inplace<UnaryOp::Tanh>("tanh_", *this, tandem::tanh); }
Tensor& Tensor::sigmoid_() { return unary_inplace<UnaryOp::Sigmoid>("sigmoid_", *this, tandem::sigmoid); }
Tensor& Tensor::relu_() { return unary_inplace<UnaryOp::Relu>("relu_", *this, tandem::relu); }

namespace {

struct Bounds {
  Scalar lo, hi;
};

Bounds bounds(const char* op, const Tensor& x, std::optional<Scalar> lo, std::optional<Scalar> hi) {
  if (!lo && !hi) throw ValueError(fmt::format("{}: wanted at least one bound", op));
  if (is_floating(x.dtype())) return {lo.value_or(-INFINITY), hi.value_or(INFINITY)};
  return {lo.value_or(std::numeric_limits<std::int64_t>::min()), hi.value_or(std::numeric_limits<std::int64_t>::max())};
}

void run_clamp(Tensor& out, const Tensor& x, const Bounds& b) {
  kernels::Stream stream = stream_for(x.device());
  backend(x.device()).clamp(stream, raw(out), raw(x), b.lo, b.hi);
}

}  // namespace

Tensor clamp(const Tensor& x, std::optional<Scalar> lo, std::optional<Scalar> hi) {
  check_defined("clamp", "the tensor", x);
  DType type = x.dtype();
  for (const auto& bound : {lo, hi}) {
    if (bound && result_type(x, *bound) != x.dtype()) type = result_type(x, *bound);
  }
  if (type != x.dtype()) return clamp(to(x, type), lo, hi);
  const Bounds b = bounds("clamp", x, lo, hi);
  Tensor out = new_tensor(x.sizes(), x.dtype(), x.device());
  run_clamp(out, x, b);
  if (needs_grad(x)) {
    record("clamp", out, {x}, [x = saved(x), b](GradContext& c) {
      const Tensor v = x.get(c).detach();
      c.set(0, where(le(v, b.hi), where(ge(v, b.lo), c.grad(), 0), 0));
    });
  }
  return out;
}

Tensor& Tensor::clamp_(const Scalar& lo, const Scalar& hi) {
  check_defined("clamp_", "the tensor", *this);
  for (const Scalar& bound : {lo, hi}) {
    if (result_type(*this, bound) != dtype()) {
      throw DTypeError(fmt::format("clamp_: a floating bound would change the dtype of {}", describe(*this)));
    }
  }
  return change_inplace(
      "clamp_", *this, {},
      [&] {
        run_clamp(*this, *this, {lo, hi});
      },
      [&](const Tensor& old) { return clamp(old, lo, hi); });
}

Tensor isnan(const Tensor& x) { return ne(x.detach(), x.detach()); }

std::vector<OpRecord> unary_records() {
  std::vector<OpRecord> records;
  for (const UnaryRecord& r : kRecords) records.push_back(r.record);
  records.push_back({"clamp", "min(max(x, lo), hi)", [] {
                       auto both = [](const Inputs& x) { return clamp(x[0], -1.03, 2.01); };
                       return std::vector<OpSample>{make_sample("x0.clamp(-1.03, 2.01)", {sample({3, 5})}, both),
                                                    make_sample("x0.clamp(min=0.3)", {sample({7})},
                                                                [](const Inputs& x) { return clamp(x[0], 0.3, {}); }),
                                                    make_sample("x0.clamp(-1.03, 2.01)", {sample({0, 2})}, both)};
                     }});
  return records;
}

}  // namespace tandem
