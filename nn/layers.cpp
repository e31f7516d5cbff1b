// Layers with parameters, and dropout.

#include "layers.h"

#include <fmt/format.h>

#include <cmath>

#include "../engine/context.h"
#include "../engine/error.h"
#include "init.h"
#include "repr.h"

namespace tandem::nn {
namespace {

void check_at_least(const char* layer, const char* what, std::int64_t value, std::int64_t least) {
  if (value < least) throw ValueError(fmt::format("{}: {} must be at least {}, got {}", layer, what, least, value));
}

void check_at_least(const char* layer, const char* what, Size2d size, std::int64_t least) {
  check_at_least(layer, what, size.height, least);
  check_at_least(layer, what, size.width, least);
}

void check_eps(const char* layer, double eps) {
  if (!(eps >= 0)) throw ValueError(fmt::format("{}: eps must be at least 0, got {}", layer, eps));
}

Parameter uniform_parameter(const Shape& shape, double bound) {
  Tensor t = empty(shape);
  return init::uniform_(t, -bound, bound);
}

}  // namespace

// ---------------------------------------------------------------- Linear

Linear::Linear(std::int64_t in, std::int64_t out, const LinearOptions& options) : in_features(in), out_features(out) {
  check_at_least("Linear", "in_features", in, 1);
  check_at_least("Linear", "out_features", out, 1);
  const double bound = 1 / std::sqrt(static_cast<double>(in));
  weight = uniform_parameter({out, in}, bound);
  if (options.bias) bias = uniform_parameter({out}, bound);
}

std::string Linear::extra_repr() const {
  return fmt::format("in_features={}, out_features={}, bias={}", in_features, out_features, repr(bias.defined()));
}

// ---------------------------------------------------------------- Conv2d

Conv2d::Conv2d(std::int64_t in, std::int64_t out, Size2d kernel, const ConvOptions& o)
    : in_channels(in), out_channels(out), kernel_size(kernel), options(o) {
  check_at_least("Conv2d", "in_channels", in, 1);
  check_at_least("Conv2d", "out_channels", out, 1);
  check_at_least("Conv2d", "kernel_size", kernel, 1);
  check_at_least("Conv2d", "stride", o.stride, 1);
  check_at_least("Conv2d", "padding", o.padding, 0);
  check_at_least("Conv2d", "dilation", o.dilation, 1);
  check_at_least("Conv2d", "groups", o.groups, 1);
  if (in % o.groups != 0 || out % o.groups != 0) {
    throw ValueError(
        fmt::format("Conv2d: groups must divide in_channels and out_channels, got {}, {} and {}", o.groups, in, out));
  }
  weight = uniform_parameter({out, in / o.groups, kernel.height, kernel.width}, 0);
  const double bound = 1 / std::sqrt(static_cast<double>(init::fans(weight).in));
  init::uniform_(weight, -bound, bound);
  if (o.bias) bias = uniform_parameter({out}, bound);
}

Tensor Conv2d::forward(const Tensor& x) {
  return conv2d(x, weight, bias,
                {.stride = options.stride.pair(),
                 .padding = options.padding.pair(),
                 .dilation = options.dilation.pair(),
                 .groups = options.groups});
}

std::string Conv2d::extra_repr() const {
  std::string s = fmt::format("{}, {}, kernel_size={}, stride={}", in_channels, out_channels, repr(kernel_size),
                              repr(options.stride));
  if (options.padding.pair() != Pair{0, 0}) s += ", padding=" + repr(options.padding);
  if (options.dilation.pair() != Pair{1, 1}) s += ", dilation=" + repr(options.dilation);
  if (options.groups != 1) s += fmt::format(", groups={}", options.groups);
  if (!bias.defined()) s += ", bias=False";
  return s;
}

// ---------------------------------------------------------------- BatchNorm

BatchNorm::BatchNorm(std::int64_t n, const BatchNormOptions& o) : num_features(n), options(o) {
  check_at_least("BatchNorm", "num_features", n, 1);
  check_eps("BatchNorm", o.eps);
  if (o.momentum && !(*o.momentum >= 0 && *o.momentum <= 1)) {
    throw ValueError(fmt::format("BatchNorm: momentum must be in [0, 1], got {}", *o.momentum));
  }
  if (o.affine) {
    weight = ones({n});
    bias = zeros({n});
  }
  if (o.track_running_stats) {
    running_mean = zeros({n});
    running_var = ones({n});
    num_batches_tracked = zeros({}, kInt64);
  }
}

Tensor BatchNorm::forward(const Tensor& x) {
  const bool tracked = running_mean.defined();
  if (!training) return batch_norm(x, weight, bias, running_mean, running_var, !tracked, 0, options.eps);
  double momentum = options.momentum.value_or(0);
  if (tracked && !options.momentum) momentum = 1 / (num_batches_tracked.item() + 1);
  ReplicaExchange* exchange = context().exchange;
  Tensor y = exchange ? sync_batch_norm(*exchange, x, weight, bias, running_mean, running_var, momentum, options.eps)
                      : batch_norm(x, weight, bias, running_mean, running_var, true, momentum, options.eps);
  if (tracked) {
    const NoGradGuard no_grad;
    num_batches_tracked.add_(1);
  }
  return y;
}

void BatchNorm::check_dims(const Tensor& x, int lo, int hi) const {
  const int n = x.defined() ? x.dim() : -1;
  if (n >= lo && n <= hi) return;
  const std::string wanted = lo == hi ? std::to_string(lo) : fmt::format("{} or {}", lo, hi);
  throw ShapeError(fmt::format("{}: wanted an input of {} dimensions, got {}", type_name(), wanted, describe(x)));
}

std::string BatchNorm::extra_repr() const {
  return fmt::format("{}, eps={}, momentum={}, affine={}, track_running_stats={}", num_features, repr(options.eps),
                     options.momentum ? repr(*options.momentum) : "None", repr(options.affine),
                     repr(options.track_running_stats));
}

// ---------------------------------------------------------------- LayerNorm

LayerNorm::LayerNorm(const Shape& shape, const LayerNormOptions& o) : normalized_shape(shape), options(o) {
  check_at_least("LayerNorm", "the number of dimensions", shape.size(), 1);
  for (const std::int64_t n : shape) check_at_least("LayerNorm", "a size", n, 1);
  check_eps("LayerNorm", o.eps);
  if (o.elementwise_affine) weight = ones(shape);
  if (o.elementwise_affine && o.bias) bias = zeros(shape);
}

std::string LayerNorm::extra_repr() const {
  return fmt::format("{}, eps={}, elementwise_affine={}", repr(normalized_shape), repr(options.eps),
                     repr(options.elementwise_affine));
}

// ---------------------------------------------------------------- Embedding

Embedding::Embedding(std::int64_t n, std::int64_t dim, const EmbeddingOptions& options)
    : num_embeddings(n), embedding_dim(dim), padding_idx(options.padding_idx) {
  check_at_least("Embedding", "num_embeddings", n, 1);
  check_at_least("Embedding", "embedding_dim", dim, 1);
  if (padding_idx) {
    if (*padding_idx < -n || *padding_idx >= n) {
      throw ValueError(fmt::format("Embedding: padding_idx must be in [{}, {}), got {}", -n, n, *padding_idx));
    }
    if (*padding_idx < 0) *padding_idx += n;
  }
  Tensor rows = empty({n, dim});
  init::normal_(rows);
  if (padding_idx) rows.select(0, *padding_idx).zero_();
  weight = rows;
}

std::string Embedding::extra_repr() const {
  std::string s = fmt::format("{}, {}", num_embeddings, embedding_dim);
  if (padding_idx) s += fmt::format(", padding_idx={}", *padding_idx);
  return s;
}

// ---------------------------------------------------------------- Dropout

Dropout::Dropout(double probability) : p(probability) {
  if (!(p >= 0 && p <= 1)) throw ValueError(fmt::format("Dropout: p must be in [0, 1], got {}", p));
}

std::string Dropout::extra_repr() const { return "p=" + repr(p) + ", inplace=False"; }

}  // namespace tandem::nn
