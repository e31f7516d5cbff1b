// Batch and layer normalisation, and dropout. The fused kernels give the first derivative; a recorded backward pass
// uses the same formulas in differentiable functions.

#include <fmt/format.h>

#include "../op_record.h"
#include "../ops_internal.h"

namespace tandem {
namespace {

void check_affine(const char* op, const Tensor& x, const Tensor& t, const char* what, const Shape& wanted) {
  if (!t.defined()) return;
  check_dtype(op, what, t, x.dtype());
  if (t.sizes() != wanted) {
    throw ShapeError(fmt::format("{}: wanted {} of shape {} for an input {}, got {}", op, what, str(wanted),
                                 str(x.sizes()), str(t.sizes())));
  }
}

Tensor flat(const Tensor& t) { return t.defined() ? contiguous(t.detach()) : Tensor(); }

/// The gradients of (x - mean) / std * w + b by differentiable functions: statistics are over the dimensions `over` and
/// broadcast against x, as w does; w and b were shared along `affine_over`.
void normalized_backward(GradContext& c, const Tensor& x, const Tensor& g, const Tensor& mean_of,
                         const Tensor& invstd_of, const Tensor& w, const Shape& over, const Shape& affine_over,
                         bool constant_statistics) {
  const Tensor hat = mul(sub(x, mean_of), invstd_of);
  if (c.needs(0)) {
    const Tensor gh = w.defined() ? mul(g, w) : g;
    Tensor gx = mul(gh, invstd_of);
    if (!constant_statistics) {
      gx = mul(invstd_of, sub(sub(gh, mean(gh, over, true)), mul(hat, mean(mul(gh, hat), over, true))));
    }
    c.set(0, gx);
  }
  if (c.needs(1)) c.set(1, sum(mul(g, hat), affine_over));
  if (c.needs(2)) c.set(2, sum(g, affine_over));
}

/// The checks of batch_norm(); returns x as (n, c, inner), contiguous.
Tensor checked_batch(const char* op, const Tensor& x, const Tensor& weight, const Tensor& bias,
                     const Tensor& running_mean, const Tensor& running_var) {
  check_floating(op, x);
  if (x.dim() < 2) throw ShapeError(fmt::format("{}: wanted an input (n, c, ...), got {}", op, str(x.sizes())));
  check_device(op, {&x, &weight, &bias, &running_mean, &running_var});
  const std::int64_t channels = x.size(1);
  check_affine(op, x, weight, "a weight", {channels});
  check_affine(op, x, bias, "a bias", {channels});
  check_affine(op, x, running_mean, "a running mean", {channels});
  check_affine(op, x, running_var, "a running variance", {channels});
  if (running_mean.defined() != running_var.defined())
    throw ValueError(fmt::format("{}: one running statistic without the other", op));
  const std::int64_t inner = channels > 0 && x.size(0) > 0 ? x.numel() / (channels * x.size(0)) : 0;
  return contiguous(reshape(x, {x.size(0), channels, inner}));
}

/// x (n, c, inner), already contiguous.
Tensor batch_norm_3d(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& mean_in,
                     const Tensor& invstd_in, bool training, double eps) {
  Tensor out = new_tensor(x.sizes(), x.dtype(), x.device());
  kernels::Stream stream = stream_for(x.device());
  backend(x.device())
      .batch_norm(stream, raw(out), raw(x), raw(mean_in), raw(invstd_in), raw_or_null(flat(weight)),
                  raw_or_null(flat(bias)));
  if (needs_grad(x, weight, bias)) {
    record("batch_norm", out, {x, weight, bias},
           [x = saved(x), weight = saved(weight), mu = saved(mean_in), iv = saved(invstd_in), training,
            eps](GradContext& c) {
             const Tensor in = x.get(c);
             const Tensor w = weight.get(c);
             const Tensor& g = c.grad();
             if (context().grad_enabled) {
               const Shape column = {1, in.size(1), 1};
               const Tensor m = training ? mean(in, {0, 2}, true) : reshape(mu.get(c), column);
               const Tensor r =
                   training ? rsqrt(add(mean(square(sub(in, m)), {0, 2}, true), eps)) : reshape(iv.get(c), column);
               normalized_backward(c, in, g, m, r, w.defined() ? reshape(w, column) : w, {0, 2}, {0, 2}, !training);
               return;
             }
             Tensor gx = c.needs(0) ? empty_like(in) : Tensor();
             Tensor gw = c.needs(1) ? empty_like(w) : Tensor();
             Tensor gb = c.needs(2) ? empty({in.size(1)}, in.dtype(), in.device()) : Tensor();
             kernels::Stream on = stream_for(in.device());
             backend(in.device())
                 .batch_norm_backward(on, raw_or_null(gx), raw_or_null(gw), raw_or_null(gb), raw(contiguous(g)),
                                      raw(in), raw(mu.get(c)), raw(iv.get(c)), raw_or_null(flat(w)), training);
             c.set(0, std::move(gx));
             c.set(1, std::move(gw));
             c.set(2, std::move(gb));
           });
  }
  return out;
}

}  // namespace

Tensor batch_norm(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& running_mean,
                  const Tensor& running_var, bool training, double momentum, double eps) {
  const Tensor in = checked_batch("batch_norm", x, weight, bias, running_mean, running_var);
  const std::int64_t channels = in.size(1);
  const std::int64_t per_channel = in.size(0) * in.size(2);
  if (training && per_channel == 1) {
    throw ValueError(
        fmt::format("batch_norm: one value per channel has no variance to train with; got {}", str(x.sizes())));
  }
  if (!training && !running_mean.defined()) throw ValueError("batch_norm: evaluation needs running statistics");

  Tensor mu;
  Tensor invstd;
  {
    const NoGradGuard no_grad;
    Tensor variance;
    if (training) {
      // Of nothing: 0, so that no gradient becomes NaN.
      mu = zeros({channels}, x.dtype(), x.device());
      variance = zeros({channels}, x.dtype(), x.device());
      if (per_channel > 0) {
        kernels::Stream stream = stream_for(x.device());
        backend(x.device()).channel_stats(stream, raw(mu), raw(variance), raw(in));
        if (running_mean.defined()) {
          const double unbiased = static_cast<double>(per_channel) / static_cast<double>(per_channel - 1);
          Tensor(running_mean).mul_(1 - momentum).add_(mul(mu, momentum));
          Tensor(running_var).mul_(1 - momentum).add_(mul(variance, momentum * unbiased));
        }
      }
    } else {
      // Copies: the running statistics may move before backward.
      mu = clone(running_mean);
      variance = running_var;
    }
    invstd = rsqrt(add(variance, eps));
  }
  return reshape(batch_norm_3d(in, weight, bias, mu, invstd, training, eps), x.sizes());
}

Tensor sync_batch_norm(ReplicaExchange& exchange, const Tensor& x, const Tensor& weight, const Tensor& bias,
                       const Tensor& running_mean, const Tensor& running_var, double momentum, double eps) {
  const char* op = "sync_batch_norm";
  const Tensor in = checked_batch(op, x, weight, bias, running_mean, running_var);
  if (in.numel() == 0) return batch_norm(x, weight, bias, running_mean, running_var, true, momentum, eps);

  const Shape over = {0, 2};
  const Shape column = {1, in.size(1), 1};
  const Tensor here = scalar_tensor(in.size(0) * in.size(2), kInt64, x.device());
  const std::vector<Tensor> first = exchange.all_reduce(op, {sum(in, over, true), here});
  const Tensor& count = first[1];
  const Tensor mu = div(first[0], count);
  // Deviations from the mean in a second exchange: sums of squares would cancel.
  const Tensor deviation = sub(in, mu);
  const Tensor squares = exchange.all_reduce(op, {sum(square(deviation), over, true)})[0];
  if (running_mean.defined()) {
    const NoGradGuard no_grad;
    const Tensor unbiased = div(squares, sub(count, 1));
    Tensor(running_mean).mul_(1 - momentum).add_(mul(reshape(mu, running_mean.sizes()), momentum));
    Tensor(running_var).mul_(1 - momentum).add_(mul(reshape(unbiased, running_var.sizes()), momentum));
  }
  Tensor out = mul(deviation, rsqrt(add(div(squares, count), eps)));
  if (weight.defined()) out = mul(out, reshape(weight, column));
  if (bias.defined()) out = add(out, reshape(bias, column));
  return reshape(out, x.sizes());
}

Tensor layer_norm(const Tensor& x, const Shape& normalized_shape, const Tensor& weight, const Tensor& bias,
                  double eps) {
  const char* op = "layer_norm";
  check_floating(op, x);
  check_device(op, {&x, &weight, &bias});
  const int n = normalized_shape.size();
  bool fits = n > 0 && n <= x.dim();
  for (int i = 0; fits && i < n; ++i) fits = x.sizes()[x.dim() - n + i] == normalized_shape[i];
  if (!fits) {
    throw ShapeError(
        fmt::format("layer_norm: {} does not end in the normalized shape {}", str(x.sizes()), str(normalized_shape)));
  }
  check_affine(op, x, weight, "a weight", normalized_shape);
  check_affine(op, x, bias, "a bias", normalized_shape);
  const std::int64_t width = normalized_shape.numel();
  const std::int64_t rows = width > 0 ? x.numel() / width : 0;
  const Tensor in = contiguous(reshape(x, {rows, width}));
  const Tensor w = weight.defined() ? reshape(weight, {width}) : weight;
  const Tensor b = bias.defined() ? reshape(bias, {width}) : bias;

  Tensor out = new_tensor({rows, width}, x.dtype(), x.device());
  const Tensor mu = new_tensor({rows}, x.dtype(), x.device());
  const Tensor invstd = new_tensor({rows}, x.dtype(), x.device());
  kernels::Stream stream = stream_for(x.device());
  backend(x.device())
      .layer_norm(stream, raw(out), raw(mu), raw(invstd), raw(in), raw_or_null(flat(w)), raw_or_null(flat(b)), eps);
  if (needs_grad(in, w, b)) {
    record(op, out, {in, w, b},
           [in = saved(in), w = saved(w), mu = saved(mu), iv = saved(invstd), eps](GradContext& c) {
             const Tensor v = in.get(c);
             const Tensor scale = w.get(c);
             const Tensor& g = c.grad();
             if (context().grad_enabled) {
               const Tensor m = mean(v, {1}, true);
               const Tensor r = rsqrt(add(mean(square(sub(v, m)), {1}, true), eps));
               normalized_backward(c, v, g, m, r, scale, {1}, {0}, false);
               return;
             }
             Tensor gx = c.needs(0) ? empty_like(v) : Tensor();
             Tensor gw = c.needs(1) ? empty_like(scale) : Tensor();
             Tensor gb = c.needs(2) ? empty({v.size(1)}, v.dtype(), v.device()) : Tensor();
             kernels::Stream on = stream_for(v.device());
             backend(v.device())
                 .layer_norm_backward(on, raw_or_null(gx), raw_or_null(gw), raw_or_null(gb), raw(contiguous(g)), raw(v),
                                      raw(mu.get(c)), raw(iv.get(c)), raw_or_null(flat(scale)));
             c.set(0, std::move(gx));
             c.set(1, std::move(gw));
             c.set(2, std::move(gb));
           });
  }
  return reshape(out, x.sizes());
}

Tensor dropout(const Tensor& x, double p, bool training) {
  check_floating("dropout", x);
  if (!(p >= 0 && p <= 1)) throw ValueError(fmt::format("dropout: wanted a probability from 0 to 1, got {}", p));
  if (!training || p == 0) return x;
  if (p == 1) return mul(x, 0);
  const Tensor in = contiguous(x);
  Tensor out = new_tensor(x.sizes(), x.dtype(), x.device());
  const Tensor mask = new_tensor(x.sizes(), kBool, x.device());
  kernels::Stream stream = stream_for(x.device());
  backend(x.device()).dropout(stream, raw(out), raw(mask), raw(in), reserve_random(x.device(), x.numel(), kFloat32), p);
  if (needs_grad(in)) {
    record("dropout", out, {in},
           [mask = saved(mask), p](GradContext& c) { c.set(0, mul(where(mask.get(c), c.grad(), 0), 1 / (1 - p))); });
  }
  return out;
}

std::vector<OpRecord> norm_records() {
  return {
      {"batch_norm", "each channel to mean 0 and variance 1",
       [] {
         auto train = [](const Inputs& x) { return batch_norm(x[0], x[1], x[2], {}, {}, true); };
         return std::vector<OpSample>{
             make_sample("F.batch_norm(x0, None, None, x1, x2, training=True)",
                         {sample({3, 2, 2, 2}), sample({2}, 1), sample({2}, 2)}, train),
             make_sample("F.batch_norm(x0, None, None, training=True)", {sample({4, 3})},
                         [](const Inputs& x) { return batch_norm(x[0], {}, {}, {}, {}, true); }),
             make_sample("F.batch_norm(x0, torch.full((2,), 0.5, dtype=x0.dtype), torch.full((2,), 2.0, "
                         "dtype=x0.dtype), x1, x2)",
                         {sample({3, 2, 2}), sample({2}, 1), sample({2}, 2)},
                         [](const Inputs& x) {
                           const DType t = x[0].dtype();
                           const Device d = x[0].device();
                           return batch_norm(x[0], x[1], x[2], full({2}, 0.5, t, d), full({2}, 2.0, t, d), false);
                         }),
             make_sample("x0 * 1 + 0 * x1 + 0 * x2", {sample({0, 2}), sample({2}, 1), sample({2}, 2)}, train)};
       }},
      {"layer_norm", "each row to mean 0 and variance 1",
       [] {
         auto call = [](const Inputs& x) { return layer_norm(x[0], x[1].sizes(), x[1], x[2]); };
         return std::vector<OpSample>{
             make_sample("F.layer_norm(x0, x1.shape, x1, x2)", {sample({3, 4}), sample({4}, 1), sample({4}, 2)}, call),
             make_sample("F.layer_norm(x0, x1.shape, x1, x2)",
                         {sample({2, 2, 3}), sample({2, 3}, 1), sample({2, 3}, 2)}, call),
             make_sample("F.layer_norm(x0, (3,))", {sample({2, 3})},
                         [](const Inputs& x) { return layer_norm(x[0], {3}); }),
             make_sample("F.layer_norm(x0, x1.shape, x1, x2)", {sample({0, 4}), sample({4}, 1), sample({4}, 2)}, call)};
       }},
      {"dropout", "elements zeroed at random",
       [] {
         // Random by nature: the values have tests of their own, here the mask is that of a fixed position.
         auto call = [](const Inputs& x) {
           const GeneratorState before = generator_state(x[0].device());
           set_generator_state(x[0].device(), {7, 0});
           Tensor y = dropout(x[0], 0.4);
           set_generator_state(x[0].device(), before);
           return y;
         };
         return std::vector<OpSample>{make_sample("", {sample({4, 5})}, call), make_sample("", {sample({0, 5})}, call)};
       }},
  };
}

}  // namespace tandem
