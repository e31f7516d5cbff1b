// Elementwise arithmetic of two operands, with broadcasting and promotion.

#include <fmt/format.h>

#include <cmath>

#include "../op_record.h"
#include "../ops_internal.h"

namespace tandem {

using kernels::BinaryOp;
using kernels::Operand;

namespace {

void run(BinaryOp op, Tensor& out, const Operand& a, const Operand& b) {
  kernels::Stream stream = stream_for(out.device());
  backend(out.device()).binary(stream, op, raw(out), a, b);
}

Tensor compute(const char* name, BinaryOp op, const Tensor& a, const Tensor& b) {
  check_device(name, {&a, &b});
  Tensor out = new_tensor(a.sizes() == b.sizes() ? a.sizes() : broadcast_shapes(name, a.sizes(), b.sizes()), a.dtype(),
                          a.device());
  run(op, out, raw(a), raw(b));
  return out;
}

/// Calls f(a, b) with both in the dtype of the result; `floating`: in a floating one.
template <class F>
Tensor promoted(const char* name, const Tensor& a, const Tensor& b, F f, bool floating = false) {
  check_defined(name, "the first operand", a);
  check_defined(name, "the second operand", b);
  if (a.dtype() == b.dtype() && (!floating || is_floating(a.dtype()))) return f(a, b);
  check_device(name, {&a, &b});
  DType type = result_type(a, b);
  if (floating) type = floating_type(type);
  return f(to(a, type), to(b, type));
}

/// x in the dtype that an operation with `s` has.
Tensor promoted(const char* name, const Tensor& x, const Scalar& s, bool floating = false) {
  check_defined(name, "the tensor", x);
  DType type = result_type(x, s);
  if (floating) type = floating_type(type);
  return to(x, type);
}

void check_no_bool(const char* name, const Tensor& a, const Tensor& b) {
  if (a.dtype() == kBool && b.dtype() == kBool) throw DTypeError(fmt::format("{}: not defined for bool", name));
}

Tensor with_scalar(BinaryOp op, const Operand& a, const Operand& b, const Tensor& like) {
  Tensor out = new_tensor(like.sizes(), like.dtype(), like.device());
  run(op, out, a, b);
  return out;
}

}  // namespace

// ---- add, sub

Tensor add(const Tensor& a, const Tensor& b) {
  return promoted("add", a, b, [](const Tensor& x, const Tensor& y) {
    Tensor out = compute("add", BinaryOp::Add, x, y);
    if (needs_grad(x, y)) {
      record("add", out, {x, y}, [](GradContext& c) {
        if (c.needs(0)) c.set(0, reduce_to(c.grad(), c.input_shape(0)));
        if (c.needs(1)) c.set(1, reduce_to(c.grad(), c.input_shape(1)));
      });
    }
    return out;
  });
}

Tensor add(const Tensor& a, const Scalar& b) {
  const Tensor x = promoted("add", a, b);
  Tensor out = with_scalar(BinaryOp::Add, raw(x), b, x);
  if (needs_grad(x)) record("add", out, {x}, [](GradContext& c) { c.set(0, c.grad()); });
  return out;
}

Tensor sub(const Tensor& a, const Tensor& b) {
  return promoted("sub", a, b, [&](const Tensor& x, const Tensor& y) {
    check_no_bool("sub", x, y);
    Tensor out = compute("sub", BinaryOp::Sub, x, y);
    if (needs_grad(x, y)) {
      record("sub", out, {x, y}, [](GradContext& c) {
        if (c.needs(0)) c.set(0, reduce_to(c.grad(), c.input_shape(0)));
        if (c.needs(1)) c.set(1, reduce_to(neg(c.grad()), c.input_shape(1)));
      });
    }
    return out;
  });
}

Tensor sub(const Tensor& a, const Scalar& b) {
  const Tensor x = promoted("sub", a, b);
  if (x.dtype() == kBool) throw DTypeError("sub: not defined for bool");
  Tensor out = with_scalar(BinaryOp::Sub, raw(x), b, x);
  if (needs_grad(x)) record("sub", out, {x}, [](GradContext& c) { c.set(0, c.grad()); });
  return out;
}

Tensor sub(const Scalar& a, const Tensor& b) {
  const Tensor x = promoted("sub", b, a);
  if (x.dtype() == kBool) throw DTypeError("sub: not defined for bool");
  Tensor out = with_scalar(BinaryOp::Sub, a, raw(x), x);
  if (needs_grad(x)) record("sub", out, {x}, [](GradContext& c) { c.set(0, neg(c.grad())); });
  return out;
}

// ---- mul, div

Tensor mul(const Tensor& a, const Tensor& b) {
  return promoted("mul", a, b, [](const Tensor& x, const Tensor& y) {
    Tensor out = compute("mul", BinaryOp::Mul, x, y);
    if (needs_grad(x, y)) {
      record("mul", out, {x, y},
             [x = saved_if(y.requires_grad(), x), y = saved_if(x.requires_grad(), y)](GradContext& c) {
               if (c.needs(0)) c.set(0, reduce_to(mul(c.grad(), y.get(c)), c.input_shape(0)));
               if (c.needs(1)) c.set(1, reduce_to(mul(c.grad(), x.get(c)), c.input_shape(1)));
             });
    }
    return out;
  });
}

Tensor mul(const Tensor& a, const Scalar& b) {
  const Tensor x = promoted("mul", a, b);
  Tensor out = with_scalar(BinaryOp::Mul, raw(x), b, x);
  if (needs_grad(x)) record("mul", out, {x}, [b](GradContext& c) { c.set(0, mul(c.grad(), b)); });
  return out;
}

Tensor div(const Tensor& a, const Tensor& b) {
  return promoted(
      "div", a, b,
      [](const Tensor& x, const Tensor& y) {
        Tensor out = compute("div", BinaryOp::Div, x, y);
        if (needs_grad(x, y)) {
          record("div", out, {x, y}, [x = saved_if(y.requires_grad(), x), y = saved(y)](GradContext& c) {
            const Tensor by = y.get(c);
            const Tensor g = div(c.grad(), by);
            if (c.needs(0)) c.set(0, reduce_to(g, c.input_shape(0)));
            if (c.needs(1)) c.set(1, reduce_to(neg(mul(g, div(x.get(c), by))), c.input_shape(1)));
          });
        }
        return out;
      },
      true);
}

Tensor div(const Tensor& a, const Scalar& b) {
  const Tensor x = promoted("div", a, b, true);
  Tensor out = with_scalar(BinaryOp::Div, raw(x), b, x);
  if (needs_grad(x)) record("div", out, {x}, [b](GradContext& c) { c.set(0, div(c.grad(), b)); });
  return out;
}

Tensor div(const Scalar& a, const Tensor& b) {
  const Tensor x = promoted("div", b, a, true);
  Tensor out = with_scalar(BinaryOp::Div, a, raw(x), x);
  if (needs_grad(x)) {
    record("div", out, {x}, [a, x = saved(x)](GradContext& c) {
      const Tensor by = x.get(c);
      c.set(0, neg(mul(c.grad(), div(div(a, by), by))));
    });
  }
  return out;
}

// ---- pow

namespace {

/// d/db a^b = a^b log a, and 0 at a = 0, its limit for b > 0.
Tensor pow_exponent_slope(const Tensor& a, const Tensor& power) {
  const Tensor zero = eq(a, 0);
  return where(zero, 0, mul(power, log(where(zero, 1, a))));
}

}  // namespace

Tensor pow(const Tensor& a, const Tensor& b) {
  return promoted("pow", a, b, [](const Tensor& x, const Tensor& y) {
    check_no_bool("pow", x, y);
    if (!is_floating(y.dtype()) && y.numel() > 0 && min(y.detach()).item<std::int64_t>() < 0) {
      throw ValueError("pow: integers to a negative power are not integers; convert to a floating dtype first");
    }
    Tensor out = compute("pow", BinaryOp::Pow, x, y);
    if (needs_grad(x, y)) {
      record("pow", out, {x, y}, [x = saved(x), y = saved(y), out = saved_output(out)](GradContext& c) {
        const Tensor base = x.get(c);
        const Tensor exponent = y.get(c);
        if (c.needs(0)) {
          const Tensor slope = where(eq(exponent, 0), 0, mul(exponent, pow(base, sub(exponent, 1))));
          c.set(0, reduce_to(mul(c.grad(), slope), base.sizes()));
        }
        if (c.needs(1)) {
          c.set(1, reduce_to(mul(c.grad(), pow_exponent_slope(base, out.get(c))), exponent.sizes()));
        }
      });
    }
    return out;
  });
}

Tensor pow(const Tensor& a, const Scalar& b) {
  const Tensor x = promoted("pow", a, b);
  if (!is_floating(x.dtype()) && b.to<std::int64_t>() < 0) {
    throw ValueError("pow: integers to a negative power are not integers; convert to a floating dtype first");
  }
  Tensor out = with_scalar(BinaryOp::Pow, raw(x), b, x);
  if (needs_grad(x)) {
    record("pow", out, {x}, [b, x = saved(x)](GradContext& c) {
      const double n = b.to<double>();
      if (n == 0) {
        c.set(0, zeros_like(c.grad()));
      } else if (n == 1) {
        c.set(0, c.grad());
      } else {
        c.set(0, mul(c.grad(), mul(n == 2 ? x.get(c) : pow(x.get(c), n - 1), n)));
      }
    });
  }
  return out;
}

Tensor pow(const Scalar& a, const Tensor& b) {
  const Tensor x = promoted("pow", b, a);
  if (!is_floating(x.dtype())) return pow(full({}, a, x.dtype(), x.device()), x);
  Tensor out = with_scalar(BinaryOp::Pow, a, raw(x), x);
  if (needs_grad(x)) {
    record("pow", out, {x}, [a, out = saved_output(out)](GradContext& c) {
      const double base = a.to<double>();
      c.set(0, base == 0 ? zeros_like(c.grad()) : mul(c.grad(), mul(out.get(c), std::log(base))));
    });
  }
  return out;
}

// ---- maximum, minimum

namespace {

Tensor extreme(const char* name, BinaryOp op, const Tensor& a, const Tensor& b) {
  return promoted(name, a, b, [&](const Tensor& x, const Tensor& y) {
    Tensor out = compute(name, op, x, y);
    if (needs_grad(x, y)) {
      record(name, out, {x, y}, [x = saved(x), y = saved(y), op](GradContext& c) {
        const Tensor p = x.get(c).detach();
        const Tensor q = y.get(c).detach();
        const Tensor half = mul(c.grad(), 0.5);
        const Tensor first = op == BinaryOp::Maximum ? gt(p, q) : lt(p, q);
        const Tensor tie = eq(p, q);
        if (c.needs(0)) c.set(0, reduce_to(where(first, c.grad(), where(tie, half, 0)), p.sizes()));
        if (c.needs(1)) c.set(1, reduce_to(where(first, 0, where(tie, half, c.grad())), q.sizes()));
      });
    }
    return out;
  });
}

}  // namespace

Tensor maximum(const Tensor& a, const Tensor& b) { return extreme("maximum", BinaryOp::Maximum, a, b); }
Tensor minimum(const Tensor& a, const Tensor& b) { return extreme("minimum", BinaryOp::Minimum, a, b); }

// ---- in place

namespace {

[[noreturn]] void refuse_result(const char* name, const Tensor& self, DType result) {
  throw DTypeError(fmt::format("{}: the result is {} and does not fit into {}", name, name_of(result), describe(self)));
}

/// The kind of the result may not be above that of self: bool, integer, floating.
void check_fits(const char* name, const Tensor& self, DType result) {
  const auto kind = [](DType t) { return t == kBool ? 0 : is_floating(t) ? 2 : 1; };
  if (kind(result) > kind(self.dtype())) refuse_result(name, self, result);
}

Tensor& inplace(const char* name, BinaryOp op, Tensor& self, const Tensor& other,
                Tensor (*functional)(const Tensor&, const Tensor&)) {
  check_defined(name, "the tensor", self);
  check_defined(name, "the operand", other);
  check_device(name, {&self, &other});
  check_fits(name, self, op == BinaryOp::Div ? floating_type(result_type(self, other)) : result_type(self, other));
  if (broadcast_shapes(name, self.sizes(), other.sizes()) != self.sizes()) {
    throw ShapeError(fmt::format("{}: the result of {} and {} would be larger than the tensor that is changed", name,
                                 str(self.sizes()), str(other.sizes())));
  }
  // Elements of one storage at other places must be read, and saved, before they are overwritten.
  const bool shared = other.impl()->storage == self.impl()->storage && !other.is_same(self);
  return change_inplace(
      name, self, {&other},
      [&] {
        const NoGradGuard no_grad;
        const Tensor operand = to(shared ? clone(other) : other, self.dtype());
        run(op, self, raw(self), raw(operand));
      },
      [&](const Tensor& old) {
        const Tensor operand = other.is_same(self) ? old : shared ? clone(other) : other;
        return to(functional(old, operand), self.dtype());
      });
}

Tensor& inplace(const char* name, BinaryOp op, Tensor& self, const Scalar& other,
                Tensor (*functional)(const Tensor&, const Scalar&)) {
  check_defined(name, "the tensor", self);
  check_fits(name, self, op == BinaryOp::Div ? floating_type(result_type(self, other)) : result_type(self, other));
  return change_inplace(
      name, self, {}, [&] { run(op, self, raw(self), other); },
      [&](const Tensor& old) { return functional(old, other); });
}

}  // namespace

Tensor& Tensor::add_(const Tensor& o) { return inplace("add_", BinaryOp::Add, *this, o, tandem::add); }
Tensor& Tensor::add_(const Scalar& o) { return inplace("add_", BinaryOp::Add, *this, o, tandem::add); }
Tensor& Tensor::sub_(const Tensor& o) { return inplace("sub_", BinaryOp::Sub, *this, o, tandem::sub); }
Tensor& Tensor::sub_(const Scalar& o) { return inplace("sub_", BinaryOp::Sub, *this, o, tandem::sub); }
Tensor& Tensor::mul_(const Tensor& o) { return inplace("mul_", BinaryOp::Mul, *this, o, tandem::mul); }
Tensor& Tensor::mul_(const Scalar& o) { return inplace("mul_", BinaryOp::Mul, *this, o, tandem::mul); }
Tensor& Tensor::div_(const Tensor& o) { return inplace("div_", BinaryOp::Div, *this, o, tandem::div); }
Tensor& Tensor::div_(const Scalar& o) { return inplace("div_", BinaryOp::Div, *this, o, tandem::div); }
Tensor& Tensor::pow_(const Scalar& o) {
  check_defined("pow_", "the tensor", *this);
  if (!is_floating(dtype()) && o.to<double>() < 0) {
    throw ValueError("pow_: integers to a negative power are not integers");
  }
  return inplace("pow_", BinaryOp::Pow, *this, o, tandem::pow);
}

// ---- records

namespace {

using TensorBinary = Tensor (*)(const Tensor&, const Tensor&);

template <TensorBinary f>
Tensor apply_both(const Inputs& x) {
  return f(x[0], x[1]);
}

/// Same shapes, broadcasts both ways, a 0-dim operand, and nothing.
std::vector<OpSample> pairs(const char* python, Tensor (*call)(const Inputs&), bool positive_first = false,
                            bool positive_second = false) {
  const auto first = positive_first ? sample_positive : sample;
  const auto second = positive_second ? sample_positive : sample;
  std::vector<OpSample> all;
  const std::pair<Shape, Shape> shapes[] = {{{3, 4}, {3, 4}}, {{2, 1, 3}, {4, 1}}, {{}, {2, 3}}, {{0, 3}, {3}}};
  for (const auto& [a, b] : shapes) all.push_back(make_sample(python, {first(a, 0), second(b, 5)}, call));
  return all;
}

}  // namespace

std::vector<OpRecord> binary_records() {
  return {
      {"add", "a + b",
       [] {
         auto all = pairs("x0 + x1", apply_both<add>);
         all.push_back(make_sample("x0 + 1.5", {sample({5})}, [](const Inputs& x) { return add(x[0], 1.5); }));
         return all;
       }},
      {"sub", "a - b",
       [] {
         auto all = pairs("x0 - x1", apply_both<sub>);
         all.push_back(make_sample("x0 - 1.5", {sample({5})}, [](const Inputs& x) { return sub(x[0], 1.5); }));
         all.push_back(make_sample("1.5 - x0", {sample({5})}, [](const Inputs& x) { return sub(1.5, x[0]); }));
         return all;
       }},
      {"mul", "a * b",
       [] {
         auto all = pairs("x0 * x1", apply_both<mul>);
         all.push_back(make_sample("x0 * 1.5", {sample({5})}, [](const Inputs& x) { return mul(x[0], 1.5); }));
         return all;
       }},
      {"div", "a / b",
       [] {
         auto all = pairs("x0 / x1", apply_both<div>);
         all.push_back(make_sample("x0 / 1.5", {sample({5})}, [](const Inputs& x) { return div(x[0], 1.5); }));
         all.push_back(make_sample("1.5 / x0", {sample({5})}, [](const Inputs& x) { return div(1.5, x[0]); }));
         return all;
       }},
      {"pow", "a to the power b",
       [] {
         auto all = pairs("x0 ** x1", apply_both<pow>, true);
         for (const double n : {-1.0, 0.0, 0.5, 1.0, 2.0, 3.0, 2.7}) {
           all.push_back(make_sample("x0 ** " + std::to_string(n), {sample_positive({5})},
                                     [n](const Inputs& x) { return pow(x[0], n); }));
         }
         all.push_back(make_sample("1.5 ** x0", {sample({5})}, [](const Inputs& x) { return pow(1.5, x[0]); }));
         return all;
       }},
      {"maximum", "the larger one", [] { return pairs("torch.maximum(x0, x1)", apply_both<maximum>); }},
      {"minimum", "the smaller one", [] { return pairs("torch.minimum(x0, x1)", apply_both<minimum>); }},
  };
}

}  // namespace tandem
