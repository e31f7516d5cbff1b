// Matrix products.

#include <fmt/format.h>

#include "../op_record.h"
#include "../ops_internal.h"

namespace tandem {
namespace {

/// x if the kernel takes its strides: one of the last two is 1. A copy otherwise.
Tensor gemm_ready(const Tensor& x) {
  const Shape& s = x.strides();
  const int n = x.dim();
  const bool ok = (s[n - 1] == 1 && s[n - 2] >= x.sizes()[n - 1]) || (s[n - 2] == 1 && s[n - 1] >= x.sizes()[n - 2]);
  return ok || x.is_contiguous() ? x : contiguous(x.detach());
}

void run_gemm(Tensor& out, const Tensor& a, const Tensor& b, double beta) {
  const Tensor left = gemm_ready(a);
  const Tensor right = gemm_ready(b);
  kernels::Stream stream = stream_for(out.device());
  backend(out.device()).gemm(stream, raw(out), raw(left), raw(right), beta);
}

Tensor swapped(const Tensor& x) { return transpose(x, -1, -2); }

/// (m, k) (k, n), or the same with one equal batch dimension in front.
Tensor product(const Tensor& a, const Tensor& b) {
  Shape shape = a.sizes();
  shape[shape.size() - 1] = b.sizes().back();
  Tensor out = new_tensor(shape, a.dtype(), a.device());
  run_gemm(out, a, b, 0);
  if (needs_grad(a, b)) {
    record("matmul", out, {a, b},
           [a = saved_if(b.requires_grad(), a), b = saved_if(a.requires_grad(), b)](GradContext& c) {
             if (c.needs(0)) c.set(0, product(c.grad(), swapped(b.get(c))));
             if (c.needs(1)) c.set(1, product(swapped(a.get(c)), c.grad()));
           });
  }
  return out;
}

Shape batch_of(const Tensor& x) { return Shape(std::span(x.sizes().data(), static_cast<std::size_t>(x.dim() - 2))); }

/// x with its batch dimensions stretched to `batch` and folded into one.
Tensor as_batch(const Tensor& x, const Shape& batch) {
  Shape full = batch;
  full.push_back(x.size(-2));
  full.push_back(x.size(-1));
  return reshape(expand(x, full), {batch.numel(), x.size(-2), x.size(-1)});
}

[[noreturn]] void refuse(const char* op, const Tensor& a, const Tensor& b, std::int64_t inner_a, std::int64_t inner_b) {
  throw ShapeError(fmt::format("{}: shapes {} and {} do not fit: inner sizes {} and {} differ", op, str(a.sizes()),
                               str(b.sizes()), inner_a, inner_b));
}

}  // namespace

Tensor matmul(const Tensor& a, const Tensor& b) {
  check_floating("matmul", a);
  check_floating("matmul", b);
  check_device("matmul", {&a, &b});
  if (a.dim() == 0 || b.dim() == 0) {
    throw ShapeError(fmt::format("matmul: a 0-dim tensor is no matrix; got {} and {}", str(a.sizes()), str(b.sizes())));
  }
  if (a.dtype() != b.dtype()) {
    const DType type = std::max(a.dtype(), b.dtype());
    return matmul(to(a, type), to(b, type));
  }
  const std::int64_t inner = b.dim() == 1 ? b.size(0) : b.size(-2);
  if (a.size(-1) != inner) refuse("matmul", a, b, a.size(-1), inner);
  if (a.dim() == 1) return squeeze(matmul(unsqueeze(a, 0), b), b.dim() == 1 ? 0 : -2);
  if (b.dim() == 1) return squeeze(matmul(a, unsqueeze(b, 1)), -1);
  if (a.dim() == 2 && b.dim() == 2) return product(a, b);
  if (b.dim() == 2) {
    Shape shape = a.sizes();
    shape[shape.size() - 1] = b.size(1);
    const std::int64_t rows = Shape(std::span(a.sizes().data(), static_cast<std::size_t>(a.dim() - 1))).numel();
    return reshape(product(reshape(a, {rows, a.size(-1)}), b), shape);
  }
  const Shape batch = broadcast_shapes("matmul", batch_of(a), batch_of(b));
  Shape shape = batch;
  shape.push_back(a.size(-2));
  shape.push_back(b.size(-1));
  return reshape(product(as_batch(a, batch), as_batch(b, batch)), shape);
}

Tensor linear(const Tensor& x, const Tensor& weight, const Tensor& bias) {
  check_floating("linear", x);
  check_dim("linear", "the weight", weight, 2);
  check_device("linear", {&x, &weight, &bias});
  check_dtype("linear", "the weight", weight, x.dtype());
  if (x.dim() == 0 || x.size(-1) != weight.size(1)) {
    throw ShapeError(fmt::format("linear: wanted an input (..., {}) for a weight {}, got {}", weight.size(1),
                                 str(weight.sizes()), str(x.sizes())));
  }
  if (bias.defined()) {
    check_dtype("linear", "the bias", bias, x.dtype());
    if (bias.sizes() != Shape{weight.size(0)}) {
      throw ShapeError(fmt::format("linear: wanted a bias ({}) for a weight {}, got {}", weight.size(0),
                                   str(weight.sizes()), str(bias.sizes())));
    }
  }
  if (x.dim() != 2) {
    Shape shape = x.sizes();
    shape[shape.size() - 1] = weight.size(0);
    const std::int64_t rows = Shape(std::span(x.sizes().data(), static_cast<std::size_t>(x.dim() - 1))).numel();
    return reshape(linear(reshape(x, {rows, x.size(-1)}), weight, bias), shape);
  }
  Tensor out = new_tensor({x.size(0), weight.size(0)}, x.dtype(), x.device());
  if (bias.defined()) {
    kernels::Stream stream = stream_for(x.device());
    backend(x.device()).copy(stream, raw(out), raw(bias));
  }
  {
    const NoGradGuard no_grad;
    run_gemm(out, x, swapped(weight), bias.defined() ? 1 : 0);
  }
  if (needs_grad(x, weight, bias)) {
    record("linear", out, {x, weight, bias},
           [x = saved_if(weight.requires_grad(), x), weight = saved_if(x.requires_grad(), weight)](GradContext& c) {
             const Tensor& g = c.grad();
             if (c.needs(0)) c.set(0, product(g, weight.get(c)));
             if (c.needs(1)) c.set(1, product(swapped(g), x.get(c)));
             if (c.needs(2)) c.set(2, sum(g, {0}));
           });
  }
  return out;
}

std::vector<OpRecord> matmul_records() {
  return {
      {"matmul", "matrix product, batched with broadcasting",
       [] {
         auto call = [](const Inputs& x) { return matmul(x[0], x[1]); };
         std::vector<OpSample> all;
         const std::pair<Shape, Shape> shapes[] = {{{2, 3}, {3, 4}},
                                                   {{3}, {3}},
                                                   {{3}, {3, 2}},
                                                   {{2, 3}, {3}},
                                                   {{2, 2, 3}, {3, 2}},
                                                   {{2, 2, 3}, {2, 3, 1}},
                                                   {{2, 1, 2, 3}, {4, 3, 2}},
                                                   {{3}, {2, 3, 2}},
                                                   {{2, 2, 3}, {3}},
                                                   {{2, 0}, {0, 3}},
                                                   {{0, 2, 3}, {0, 3, 2}}};
         for (const auto& [a, b] : shapes) {
           all.push_back(make_sample("torch.matmul(x0, x1)", {sample(a, 0), sample(b, 4)}, call));
         }
         return all;
       }},
      {"linear", "x W^T + b",
       [] {
         auto call = [](const Inputs& x) { return linear(x[0], x[1], x[2]); };
         return std::vector<OpSample>{
             make_sample("F.linear(x0, x1, x2)", {sample({2, 3}), sample({4, 3}, 1), sample({4}, 2)}, call),
             make_sample("F.linear(x0, x1, x2)", {sample({2, 2, 3}), sample({4, 3}, 1), sample({4}, 2)}, call),
             make_sample("F.linear(x0, x1)", {sample({3}), sample({4, 3}, 1)},
                         [](const Inputs& x) { return linear(x[0], x[1]); }),
             make_sample("F.linear(x0, x1, x2)", {sample({0, 3}), sample({4, 3}, 1), sample({4}, 2)}, call)};
       }},
  };
}

}  // namespace tandem
