// Reductions over some or all dimensions.

#include <fmt/format.h>

#include <cmath>
#include <limits>

#include "../op_record.h"
#include "../ops_internal.h"

namespace tandem {

using kernels::ReduceOp;

namespace {

/// Marks each dimension to be reduced; IndexError for a repeated one. No dims: none is marked.
std::array<bool, kMaxDims> marked(const char* op, const Shape& dims, int ndim) {
  std::array<bool, kMaxDims> mark{};
  for (std::int64_t d : dims) {
    bool& m = mark[static_cast<std::size_t>(wrap_dim(op, d, ndim))];
    if (m) throw IndexError(fmt::format("{}: dimension {} is named twice in {}", op, d, str(dims)));
    m = true;
  }
  return mark;
}

Shape all_dims(const Tensor& x) {
  Shape dims;
  for (int i = 0; i < x.dim(); ++i) dims.push_back(i);
  return dims;
}

/// x's shape with 1 where reduced.
Shape kept_shape(const char* op, const Tensor& x, const Shape& dims) {
  const auto mark = marked(op, dims, x.dim());
  Shape shape = x.sizes();
  for (int i = 0; i < shape.size(); ++i) {
    if (mark[static_cast<std::size_t>(i)]) shape[i] = 1;
  }
  return shape;
}

Shape dropped_shape(const char* op, const Tensor& x, const Shape& dims) {
  const auto mark = marked(op, dims, x.dim());
  Shape shape;
  for (int i = 0; i < x.dim(); ++i) {
    if (!mark[static_cast<std::size_t>(i)]) shape.push_back(x.sizes()[i]);
  }
  return shape;
}

Tensor run(ReduceOp op, const Tensor& x, const Shape& kept, DType dtype) {
  Tensor out = new_tensor(kept, dtype, x.device());
  kernels::Stream stream = stream_for(x.device());
  backend(x.device()).reduce(stream, op, raw(out), raw(x));
  return out;
}

Tensor without_grad_reshaped(const Tensor& t, const Shape& shape) {
  return t.sizes() == shape ? t : alias_of(t.reshape(shape));
}

}  // namespace

Tensor sum(const Tensor& x, const Shape& dims, bool keepdim) {
  check_defined("sum", "the tensor", x);
  const Shape kept = kept_shape("sum", x, dims);
  const DType type = is_floating(x.dtype()) ? x.dtype() : kInt64;
  Tensor out = [&] {
    const NoGradGuard no_grad;
    return without_grad_reshaped(run(ReduceOp::Sum, x, kept, type), keepdim ? kept : dropped_shape("sum", x, dims));
  }();
  if (needs_grad(x)) {
    record("sum", out, {x},
           [kept, shape = x.sizes()](GradContext& c) { c.set(0, expand(reshape(c.grad(), kept), shape)); });
  }
  return out;
}

Tensor sum(const Tensor& x) { return sum(x, x.defined() ? all_dims(x) : Shape{}); }

Tensor mean(const Tensor& x, const Shape& dims, bool keepdim) {
  check_floating("mean", x);
  const std::int64_t n = x.numel() == 0 && kept_shape("mean", x, dims).numel() == 0
                             ? 1
                             : x.numel() / std::max<std::int64_t>(1, kept_shape("mean", x, dims).numel());
  return div(sum(x, dims, keepdim), n);
}

Tensor mean(const Tensor& x) { return mean(x, x.defined() ? all_dims(x) : Shape{}); }

Tensor var(const Tensor& x, const Shape& dims, std::int64_t correction, bool keepdim) {
  check_floating("var", x);
  const Shape kept = kept_shape("var", x, dims);
  const std::int64_t n = kept.numel() == 0 ? 1 : x.numel() / kept.numel();
  const Tensor deviation = sub(x, mean(x, dims, true));
  return div(sum(square(deviation), dims, keepdim), std::max<std::int64_t>(0, n - correction));
}

Tensor var(const Tensor& x) { return var(x, x.defined() ? all_dims(x) : Shape{}); }

Tensor sum_to(const Tensor& x, const Shape& shape) {
  check_defined("sum_to", "the tensor", x);
  if (shape.size() > x.dim() || broadcast_shapes("sum_to", x.sizes(), shape) != x.sizes()) {
    throw ShapeError(fmt::format("sum_to: {} does not broadcast to {}", str(shape), str(x.sizes())));
  }
  const int extra = x.dim() - shape.size();
  Shape dims;
  for (int i = 0; i < x.dim(); ++i) {
    if (i < extra || (shape[i - extra] == 1 && x.sizes()[i] != 1)) dims.push_back(i);
  }
  const Tensor out = dims.empty() ? x : sum(x, dims, true);
  return extra == 0 ? out : reshape(out, shape);
}

Tensor norm(const Tensor& x) {
  check_floating("norm", x);
  Tensor out = [&] {
    const NoGradGuard no_grad;
    return sqrt(sum(square(x)));
  }();
  if (needs_grad(x)) {
    record("norm", out, {x}, [x = saved(x), out = saved_output(out)](GradContext& c) {
      const Tensor length = out.get(c);
      // x / |x|, and 0 at 0.
      c.set(0, mul(c.grad(), div(x.get(c), where(eq(length, 0), 1, length))));
    });
  }
  return out;
}

// ---- extremes

namespace {

Tensor extreme_of_all(const char* name, ReduceOp op, const Tensor& x) {
  check_defined(name, "the tensor", x);
  if (x.numel() == 0) throw ValueError(fmt::format("{}: {} has no elements", name, describe(x)));
  Shape kept;
  for (int i = 0; i < x.dim(); ++i) kept.push_back(1);
  Tensor out = [&] {
    const NoGradGuard no_grad;
    return without_grad_reshaped(run(op, x, kept, x.dtype()), {});
  }();
  if (needs_grad(x)) {
    record(name, out, {x}, [x = saved(x), out = saved_output(out)](GradContext& c) {
      const Tensor ties = to(eq(x.get(c).detach(), out.get(c).detach()), c.grad().dtype());
      c.set(0, mul(div(ties, sum(ties)), c.grad()));
    });
  }
  return out;
}

std::pair<Tensor, Tensor> extreme_along(const char* name, ReduceOp op, const Tensor& x, std::int64_t dim,
                                        bool keepdim) {
  check_defined(name, "the tensor", x);
  const int d = wrap_dim(name, dim, x.dim());
  if (x.dim() == 0) return {clone(x), zeros({}, kInt64, x.device())};
  if (x.sizes()[d] == 0) throw ValueError(fmt::format("{}: dimension {} of {} has no elements", name, d, describe(x)));
  Shape kept = x.sizes();
  kept[d] = 1;
  Tensor values = new_tensor(kept, x.dtype(), x.device());
  Tensor indices = new_tensor(kept, kInt64, x.device());
  kernels::Stream stream = stream_for(x.device());
  backend(x.device()).reduce_index(stream, op, raw(values), raw(indices), raw(x), d);
  Shape shape = kept;
  if (!keepdim) shape.erase(d);
  const Tensor kept_indices = indices;
  {
    const NoGradGuard no_grad;
    values = without_grad_reshaped(values, shape);
    indices = without_grad_reshaped(indices, shape);
  }
  if (needs_grad(x)) {
    record(name, values, {x}, [index = saved(kept_indices), d, kept, full = x.sizes()](GradContext& c) {
      const Tensor& g = c.grad();
      c.set(0, scatter_add(zeros(full, g.dtype(), g.device()), d, index.get(c), reshape(g, kept)));
    });
  }
  return {values, indices};
}

}  // namespace

Tensor max(const Tensor& x) { return extreme_of_all("max", ReduceOp::Max, x); }
Tensor min(const Tensor& x) { return extreme_of_all("min", ReduceOp::Min, x); }
std::pair<Tensor, Tensor> max(const Tensor& x, std::int64_t dim, bool keepdim) {
  return extreme_along("max", ReduceOp::Max, x, dim, keepdim);
}
std::pair<Tensor, Tensor> min(const Tensor& x, std::int64_t dim, bool keepdim) {
  return extreme_along("min", ReduceOp::Min, x, dim, keepdim);
}

Tensor argmax(const Tensor& x, std::int64_t dim, bool keepdim) {
  check_defined("argmax", "the tensor", x);
  return extreme_along("argmax", ReduceOp::Max, x.detach(), dim, keepdim).second;
}

Tensor argmax(const Tensor& x) {
  check_defined("argmax", "the tensor", x);
  return argmax(reshape(x.detach(), {x.numel()}), 0);
}

// ---- records

namespace {

/// Over everything, over one dimension, over two with keepdim, of a 0-dim tensor, and of nothing.
template <class All, class Some>
std::vector<OpSample> reduction_samples(const std::string& name, const std::string& more, All all, Some some) {
  const auto call = [&](const std::string& arguments) { return "x0." + name + "(" + arguments + more + ")"; };
  return {
      make_sample(call(""), {sample({3, 4})}, all),
      make_sample(call("dim=(1,)"), {sample({3, 4})}, [some](const Inputs& x) { return some(x[0], {1}, false); }),
      make_sample(call("dim=(0,)"), {sample({3, 4})}, [some](const Inputs& x) { return some(x[0], {0}, false); }),
      make_sample(call("dim=(0,-1), keepdim=True"), {sample({2, 3, 4})},
                  [some](const Inputs& x) {
                    return some(x[0], {0, -1}, true);
                  }),
      make_sample(call("dim=(1,)"), {sample({0, 3})}, [some](const Inputs& x) { return some(x[0], {1}, false); }),
  };
}

template <std::pair<Tensor, Tensor> (*along)(const Tensor&, std::int64_t, bool), Tensor (*all)(const Tensor&)>
std::vector<OpSample> extreme_samples(const std::string& name) {
  return {
      make_sample("x0." + name + "()", {sample({3, 4})}, [](const Inputs& x) { return all(x[0]); }),
      make_sample("x0." + name + "(dim=1)", {sample({3, 4})}, [](const Inputs& x) { return along(x[0], 1, false); }),
      make_sample("x0." + name + "(dim=0, keepdim=True)", {sample({3, 4})},
                  [](const Inputs& x) { return along(x[0], 0, true); }),
      make_sample("x0." + name + "(dim=1)", {sample({0, 4})}, [](const Inputs& x) { return along(x[0], 1, false); }),
  };
}

}  // namespace

std::vector<OpRecord> reduce_records() {
  return {
      {"sum", "sum over dims",
       [] {
         return reduction_samples(
             "sum", "", [](const Inputs& x) { return sum(x[0]); },
             [](const Tensor& x, const Shape& d, bool k) { return sum(x, d, k); });
       }},
      {"mean", "mean over dims",
       [] {
         return reduction_samples(
             "mean", "", [](const Inputs& x) { return mean(x[0]); },
             [](const Tensor& x, const Shape& d, bool k) { return mean(x, d, k); });
       }},
      {"var", "variance over dims",
       [] {
         auto samples = reduction_samples(
             "var", "", [](const Inputs& x) { return var(x[0]); },
             [](const Tensor& x, const Shape& d, bool k) { return var(x, d, 1, k); });
         samples.push_back(make_sample("x0.var(dim=(1,), unbiased=False)", {sample({3, 4})},
                                       [](const Inputs& x) { return var(x[0], {1}, 0); }));
         return samples;
       }},
      {"max", "largest element, or values and positions along dim", [] { return extreme_samples<max, max>("max"); }},
      {"min", "smallest element, or values and positions along dim", [] { return extreme_samples<min, min>("min"); }},
      {"argmax", "position of the largest element",
       [] {
         return std::vector<OpSample>{
             make_sample("x0.argmax()", {sample({3, 4})}, [](const Inputs& x) { return argmax(x[0]); }),
             make_sample("x0.argmax(dim=0)", {sample({3, 4})}, [](const Inputs& x) { return argmax(x[0], 0); }),
             make_sample("x0.argmax(dim=1)", {sample({0, 4})}, [](const Inputs& x) { return argmax(x[0], 1); })};
       },
       false},
      {"sum_to", "sum down to a shape that broadcasts to x's",
       [] {
         return std::vector<OpSample>{make_sample("x0.sum_to_size(3, 1)", {sample({2, 3, 4})},
                                                  [](const Inputs& x) {
                                                    return sum_to(x[0], {3, 1});
                                                  }),
                                      make_sample("x0.sum_to_size(1, 4)", {sample({0, 4})}, [](const Inputs& x) {
                                        return sum_to(x[0], {1, 4});
                                      })};
       }},
      {"norm", "square root of the sum of squares",
       [] {
         auto call = [](const Inputs& x) { return norm(x[0]); };
         return std::vector<OpSample>{make_sample("x0.norm()", {sample({3, 4})}, call),
                                      make_sample("x0.norm()", {sample({0})}, call)};
       }},
  };
}

}  // namespace tandem
