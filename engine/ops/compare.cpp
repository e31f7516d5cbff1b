// Comparisons, selection by a mask, and equality of whole tensors.

#include <fmt/format.h>

#include <cmath>

#include "../op_record.h"
#include "../ops_internal.h"

namespace tandem {

using kernels::CompareOp;
using kernels::Operand;

namespace {

Tensor run(CompareOp op, const Shape& shape, Device device, const Operand& a, const Operand& b) {
  Tensor out = new_tensor(shape, kBool, device);
  kernels::Stream stream = stream_for(device);
  backend(device).compare(stream, op, raw(out), a, b);
  return out;
}

Tensor compare(const char* name, CompareOp op, const Tensor& a, const Tensor& b) {
  check_defined(name, "the first operand", a);
  check_defined(name, "the second operand", b);
  check_device(name, {&a, &b});
  const NoGradGuard no_grad;
  const DType type = result_type(a, b);
  return run(op, broadcast_shapes(name, a.sizes(), b.sizes()), a.device(), raw(to(a, type)), raw(to(b, type)));
}

Tensor compare(const char* name, CompareOp op, const Tensor& a, const Scalar& b) {
  check_defined(name, "the tensor", a);
  const NoGradGuard no_grad;
  return run(op, a.sizes(), a.device(), raw(to(a, result_type(a, b))), b);
}

}  // namespace

#define TANDEM_DEFINE_COMPARE(name, Op)                                                         \
  Tensor name(const Tensor& a, const Tensor& b) { return compare(#name, CompareOp::Op, a, b); } \
  Tensor name(const Tensor& a, const Scalar& b) { return compare(#name, CompareOp::Op, a, b); }
TANDEM_DEFINE_COMPARE(eq, Eq)
TANDEM_DEFINE_COMPARE(ne, Ne)
TANDEM_DEFINE_COMPARE(lt, Lt)
TANDEM_DEFINE_COMPARE(le, Le)
TANDEM_DEFINE_COMPARE(gt, Gt)
TANDEM_DEFINE_COMPARE(ge, Ge)
#undef TANDEM_DEFINE_COMPARE

namespace {

void check_cond(const Tensor& cond) {
  check_defined("where", "the condition", cond);
  check_dtype("where", "the condition", cond, kBool);
}

Tensor run_where(const Tensor& cond, const Shape& shape, DType dtype, const Operand& a, const Operand& b) {
  Tensor out = new_tensor(shape, dtype, cond.device());
  kernels::Stream stream = stream_for(cond.device());
  backend(cond.device()).where(stream, raw(out), raw(cond), a, b);
  return out;
}

}  // namespace

Tensor where(const Tensor& cond, const Tensor& a, const Tensor& b) {
  check_cond(cond);
  check_defined("where", "the first choice", a);
  check_defined("where", "the second choice", b);
  check_device("where", {&cond, &a, &b});
  const DType type = result_type(a, b);
  if (a.dtype() != type || b.dtype() != type) return where(cond, to(a, type), to(b, type));
  const Shape shape = broadcast_shapes("where", cond.sizes(), broadcast_shapes("where", a.sizes(), b.sizes()));
  Tensor out = run_where(cond, shape, type, raw(a), raw(b));
  if (needs_grad(a, b)) {
    record("where", out, {a, b}, [cond = saved(cond)](GradContext& c) {
      const Tensor mask = cond.get(c);
      if (c.needs(0)) c.set(0, reduce_to(where(mask, c.grad(), 0), c.input_shape(0)));
      if (c.needs(1)) c.set(1, reduce_to(where(mask, 0, c.grad()), c.input_shape(1)));
    });
  }
  return out;
}

namespace {

/// where() between a tensor and a number, `first` telling which is taken where cond holds.
Tensor where_scalar(const Tensor& cond, const Tensor& x, const Scalar& s, bool first) {
  check_cond(cond);
  check_defined("where", "the tensor", x);
  check_device("where", {&cond, &x});
  const DType type = result_type(x, s);
  if (x.dtype() != type) return where_scalar(cond, to(x, type), s, first);
  const Shape shape = broadcast_shapes("where", cond.sizes(), x.sizes());
  const Operand a = raw(x);
  const Operand b = s;
  Tensor out = run_where(cond, shape, type, first ? a : b, first ? b : a);
  if (needs_grad(x)) {
    record("where", out, {x}, [cond = saved(cond), first](GradContext& c) {
      c.set(0, reduce_to(where_scalar(cond.get(c), c.grad(), 0, first), c.input_shape(0)));
    });
  }
  return out;
}

}  // namespace

Tensor where(const Tensor& cond, const Tensor& a, const Scalar& b) { return where_scalar(cond, a, b, true); }
Tensor where(const Tensor& cond, const Scalar& a, const Tensor& b) { return where_scalar(cond, b, a, false); }

bool equal(const Tensor& a, const Tensor& b) {
  if (a.defined() != b.defined()) return false;
  if (!a.defined()) return true;
  if (a.sizes() != b.sizes() || a.dtype() != b.dtype()) return false;
  const NoGradGuard no_grad;
  return sum(ne(a, b)).item<std::int64_t>() == 0;
}

bool allclose(const Tensor& a, const Tensor& b, double rtol, double atol, bool equal_nan) {
  if (a.sizes() != b.sizes()) return false;
  const NoGradGuard no_grad;
  const Tensor x = to(a, kFloat64);
  const Tensor y = to(b, kFloat64);
  const Tensor distance = abs(sub(x, y));
  const Tensor within = mul(le(distance, add(mul(abs(y), rtol), atol)), lt(distance, INFINITY));
  // Equal infinities are close; their difference is NaN.
  Tensor close = add(within, eq(x, y));
  if (equal_nan) close = add(close, mul(isnan(x), isnan(y)));
  return sum(close).item<std::int64_t>() == a.numel();
}

std::vector<OpRecord> compare_records() {
  return {
      {"where", "a where cond, else b",
       [] {
         auto call = [](const Inputs& x) { return where(x[0], x[1], x[2]); };
         auto cond = [](const Shape& shape) { return gt(sample(shape, 3), 0); };
         return std::vector<OpSample>{
             make_sample("torch.where(x0, x1, x2)", {cond({3, 4}), sample({3, 4}), sample({4}, 2)}, call),
             make_sample("torch.where(x0, x1, x2)", {cond({4}), sample({2, 1}), sample({}, 2)}, call),
             make_sample("torch.where(x0, x1, torch.tensor(2.5, dtype=x1.dtype))", {cond({6}), sample({6})},
                         [](const Inputs& x) { return where(x[0], x[1], 2.5); }),
             make_sample("torch.where(x0, torch.tensor(2.5, dtype=x1.dtype), x1)", {cond({6}), sample({6})},
                         [](const Inputs& x) { return where(x[0], 2.5, x[1]); }),
             make_sample("torch.where(x0, x1, x2)", {cond({0}), sample({0}), sample({0}, 2)}, call)};
       }},
#define TANDEM_COMPARE_RECORD(name, text, sign)                                                                        \
  {#name, text,                                                                                                        \
   [] {                                                                                                                \
     return std::vector<OpSample>{                                                                                     \
         make_sample("x0 " sign " x1", {sample({3, 4}), sample({4}, 4)},                                               \
                     [](const Inputs& x) { return name(x[0], x[1]); }),                                                \
         make_sample("x0 " sign " 0.5", {sample({9})}, [](const Inputs& x) { return name(x[0], 0.5); }),               \
         make_sample("x0 " sign " x1", {sample({0}), sample({1})}, [](const Inputs& x) { return name(x[0], x[1]); })}; \
   },                                                                                                                  \
   false}
      TANDEM_COMPARE_RECORD(eq, "a == b", "=="),
      TANDEM_COMPARE_RECORD(ne, "a != b", "!="),
      TANDEM_COMPARE_RECORD(lt, "a < b", "<"),
      TANDEM_COMPARE_RECORD(le, "a <= b", "<="),
      TANDEM_COMPARE_RECORD(gt, "a > b", ">"),
      TANDEM_COMPARE_RECORD(ge, "a >= b", ">="),
#undef TANDEM_COMPARE_RECORD
  };
}

}  // namespace tandem
