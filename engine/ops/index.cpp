// Reading and adding at indices. index_select and index_add are each other's derivative, and so are gather and
// scatter_add.

#include <fmt/format.h>

#include "../op_record.h"
#include "../ops_internal.h"

namespace tandem {
namespace {

int indexed_dim(const char* op, const Tensor& x, std::int64_t dim, const Tensor& index) {
  check_defined(op, "the tensor", x);
  check_defined(op, "the index", index);
  check_dtype(op, "the index", index, kInt64);
  check_device(op, {&x, &index});
  if (x.dim() == 0) throw ShapeError(fmt::format("{}: a 0-dim tensor cannot be indexed", op));
  return wrap_dim(op, dim, x.dim());
}

void check_source(const char* op, const Tensor& x, const Tensor& src, const Shape& wanted) {
  check_defined(op, "the source", src);
  check_device(op, {&x, &src});
  check_dtype(op, "the source", src, x.dtype());
  if (src.sizes() != wanted) {
    throw ShapeError(fmt::format("{}: wanted a source {}, got {}", op, str(wanted), str(src.sizes())));
  }
}

void check_gather_index(const char* op, const Tensor& x, int d, const Tensor& index) {
  bool ok = index.dim() == x.dim();
  for (int i = 0; ok && i < x.dim(); ++i) ok = i == d || index.sizes()[i] <= x.sizes()[i];
  if (!ok) {
    throw ShapeError(fmt::format("{}: the index {} must have the rank of {} and, but for dimension {}, no larger sizes",
                                 op, str(index.sizes()), str(x.sizes()), d));
  }
}

/// `part` narrowed at its front to `shape`, except along d.
Tensor corner(const Tensor& x, const Shape& shape, int d) {
  const NoGradGuard no_grad;
  Tensor out = x;
  for (int i = 0; i < x.dim(); ++i) {
    if (i != d && out.sizes()[i] != shape[i]) out = narrow(out, i, 0, shape[i]);
  }
  return out;
}

}  // namespace

Tensor index_select(const Tensor& x, std::int64_t dim, const Tensor& index) {
  const int d = indexed_dim("index_select", x, dim, index);
  check_dim("index_select", "the index", index, 1);
  Shape shape = x.sizes();
  shape[d] = index.numel();
  Tensor out = new_tensor(shape, x.dtype(), x.device());
  kernels::Stream stream = stream_for(x.device());
  backend(x.device()).index_select(stream, raw(out), raw(x), d, raw(index));
  check_index_fault("index_select", stream);
  if (needs_grad(x)) {
    record("index_select", out, {x}, [d, index = saved(index), from = x.sizes()](GradContext& c) {
      const Tensor& g = c.grad();
      c.set(0, index_add(zeros(from, g.dtype(), g.device()), d, index.get(c), g));
    });
  }
  return out;
}

Tensor index_add(const Tensor& x, std::int64_t dim, const Tensor& index, const Tensor& src) {
  const int d = indexed_dim("index_add", x, dim, index);
  check_dim("index_add", "the index", index, 1);
  Shape wanted = x.sizes();
  wanted[d] = index.numel();
  check_source("index_add", x, src, wanted);
  Tensor out = [&] {
    const NoGradGuard no_grad;
    return clone(x);
  }();
  kernels::Stream stream = stream_for(x.device());
  backend(x.device()).index_add(stream, raw(out), d, raw(index), raw(src));
  check_index_fault("index_add", stream);
  if (needs_grad(x, src)) {
    record("index_add", out, {x, src}, [d, index = saved(index)](GradContext& c) {
      if (c.needs(0)) c.set(0, c.grad());
      if (c.needs(1)) c.set(1, index_select(c.grad(), d, index.get(c)));
    });
  }
  return out;
}

Tensor gather(const Tensor& x, std::int64_t dim, const Tensor& index) {
  const int d = indexed_dim("gather", x, dim, index);
  check_gather_index("gather", x, d, index);
  Tensor out = new_tensor(index.sizes(), x.dtype(), x.device());
  kernels::Stream stream = stream_for(x.device());
  backend(x.device()).gather(stream, raw(out), raw(corner(x, index.sizes(), d)), d, raw(index));
  check_index_fault("gather", stream);
  if (needs_grad(x)) {
    record("gather", out, {x}, [d, index = saved(index), from = x.sizes()](GradContext& c) {
      const Tensor& g = c.grad();
      c.set(0, scatter_add(zeros(from, g.dtype(), g.device()), d, index.get(c), g));
    });
  }
  return out;
}

Tensor scatter_add(const Tensor& x, std::int64_t dim, const Tensor& index, const Tensor& src) {
  const int d = indexed_dim("scatter_add", x, dim, index);
  check_gather_index("scatter_add", x, d, index);
  check_source("scatter_add", x, src, index.sizes());
  Tensor out = [&] {
    const NoGradGuard no_grad;
    return clone(x);
  }();
  kernels::Stream stream = stream_for(x.device());
  backend(x.device()).scatter_add(stream, raw(corner(out, index.sizes(), d)), d, raw(index), raw(src));
  check_index_fault("scatter_add", stream);
  if (needs_grad(x, src)) {
    record("scatter_add", out, {x, src}, [d, index = saved(index)](GradContext& c) {
      if (c.needs(0)) c.set(0, c.grad());
      if (c.needs(1)) c.set(1, gather(c.grad(), d, index.get(c)));
    });
  }
  return out;
}

Tensor embedding(const Tensor& index, const Tensor& weight, std::optional<std::int64_t> padding_idx) {
  check_dim("embedding", "the weight", weight, 2);
  check_defined("embedding", "the index", index);
  check_dtype("embedding", "the index", index, kInt64);
  check_device("embedding", {&index, &weight});
  const std::int64_t rows = weight.size(0);
  if (padding_idx && (*padding_idx < -rows || *padding_idx >= rows)) {
    throw ValueError(fmt::format("embedding: padding_idx {} is out of range for {} rows", *padding_idx, rows));
  }
  const Tensor flat = reshape(index, {index.numel()});
  Tensor out = new_tensor({index.numel(), weight.size(1)}, weight.dtype(), weight.device());
  kernels::Stream stream = stream_for(weight.device());
  backend(weight.device()).index_select(stream, raw(out), raw(weight), 0, raw(flat));
  check_index_fault("embedding", stream);
  if (needs_grad(weight)) {
    const std::int64_t padding = !padding_idx ? -1 : *padding_idx < 0 ? *padding_idx + rows : *padding_idx;
    record("embedding", out, {weight}, [flat = saved(flat), from = weight.sizes(), padding](GradContext& c) {
      const Tensor at = flat.get(c);
      const Tensor g = padding < 0 ? c.grad() : where(unsqueeze(eq(at, padding), 1), 0, c.grad());
      c.set(0, index_add(zeros(from, g.dtype(), g.device()), 0, at, g));
    });
  }
  Shape shape = index.sizes();
  shape.push_back(weight.size(1));
  return reshape(out, shape);
}

std::vector<OpRecord> index_records() {
  return {
      {"index_select", "x[index] along a dimension",
       [] {
         auto call = [](std::int64_t d) { return [d](const Inputs& x) { return index_select(x[0], d, x[1]); }; };
         return std::vector<OpSample>{
             make_sample("x0.index_select(0, x1)", {sample({4, 3}), sample_index({5}, 4)}, call(0)),
             make_sample("x0.index_select(-1, x1)", {sample({2, 3}), sample_index({4}, 3)}, call(-1)),
             make_sample("x0.index_select(0, x1)", {sample({4, 3}), sample_index({0}, 4)}, call(0))};
       }},
      {"index_add", "x with rows added at index",
       [] {
         auto call = [](const Inputs& x) { return index_add(x[0], 0, x[1], x[2]); };
         return std::vector<OpSample>{
             make_sample("x0.index_add(0, x1, x2)", {sample({4, 3}), sample_index({5}, 4), sample({5, 3}, 2)}, call),
             make_sample("x0.index_add(0, x1, x2)", {sample({4, 3}), sample_index({0}, 4), sample({0, 3}, 2)}, call)};
       }},
      {"gather", "x at an index for each element",
       [] {
         auto call = [](std::int64_t d) { return [d](const Inputs& x) { return gather(x[0], d, x[1]); }; };
         return std::vector<OpSample>{
             make_sample("x0.gather(0, x1)", {sample({4, 3}), sample_index({5, 2}, 4)}, call(0)),
             make_sample("x0.gather(1, x1)", {sample({4, 3}), sample_index({4, 2}, 3)}, call(1)),
             make_sample("x0.gather(1, x1)", {sample({4, 3}), sample_index({0, 2}, 3)}, call(1))};
       }},
      {"scatter_add", "x with elements added at an index for each",
       [] {
         auto call = [](const Inputs& x) { return scatter_add(x[0], 0, x[1], x[2]); };
         return std::vector<OpSample>{make_sample("x0.scatter_add(0, x1, x2)",
                                                  {sample({4, 3}), sample_index({5, 2}, 4), sample({5, 2}, 2)}, call),
                                      make_sample("x0.scatter_add(0, x1, x2)",
                                                  {sample({4, 3}), sample_index({0, 3}, 4), sample({0, 3}, 2)}, call)};
       }},
      {"embedding", "rows of a table",
       [] {
         auto call = [](const Inputs& x) { return embedding(x[0], x[1]); };
         return std::vector<OpSample>{
             make_sample("F.embedding(x0, x1)", {sample_index({2, 3}, 4), sample({4, 2})}, call),
             make_sample("F.embedding(x0, x1)", {sample_index({0}, 4), sample({4, 2})}, call)};
       }},
  };
}

}  // namespace tandem
