#pragma once
// Layers with parameters, and dropout. Names, defaults, shapes and initial distributions are PyTorch's; initial values
// are float32, drawn from the generator of cpu:0 in the order of construction. Sizes out of range are a ValueError at
// construction. Options are given by name: nn::Conv2d{1, 16, 3, {.padding = 1}}.

#include <cstdint>
#include <optional>
#include <string>

#include "../engine/ops.h"
#include "module.h"

namespace tandem::nn {

/// A height and a width; one number means both.
struct Size2d {
  Size2d(std::int64_t both) : height(both), width(both) {}  // NOLINT(google-explicit-constructor)
  Size2d(std::int64_t h, std::int64_t w) : height(h), width(w) {}
  Pair pair() const { return {height, width}; }

  std::int64_t height, width;
};

struct LinearOptions {
  bool bias = true;
};
/// x W^T + b: (..., in_features) to (..., out_features). Weight (out_features, in_features). Both are drawn from
/// U(-k, k), k = 1 / sqrt(in_features).
struct Linear : Module {
  Linear(std::int64_t in_features, std::int64_t out_features, const LinearOptions& options = {});
  Tensor forward(const Tensor& x) { return linear(x, weight, bias); }
  std::string extra_repr() const override;

  std::int64_t in_features, out_features;
  Parameter weight, bias;
  TANDEM_MODULE(Linear, weight, bias)
};

struct ConvOptions {
  Size2d stride = 1, padding = 0, dilation = 1;
  std::int64_t groups = 1;
  bool bias = true;
};
/// (n, in_channels, h, w) to (n, out_channels, oh, ow). Weight (out_channels, in_channels / groups, kh, kw). Weight and
/// bias are drawn from U(-k, k), k = 1 / sqrt(in_channels / groups kh kw).
struct Conv2d : Module {
  Conv2d(std::int64_t in_channels, std::int64_t out_channels, Size2d kernel_size, const ConvOptions& options = {});
  Tensor forward(const Tensor& x);
  std::string extra_repr() const override;

  std::int64_t in_channels, out_channels;
  Size2d kernel_size;
  ConvOptions options;
  Parameter weight, bias;
  TANDEM_MODULE(Conv2d, weight, bias)
};

struct BatchNormOptions {
  double eps = 1e-5;
  std::optional<double> momentum = 0.1;  ///< without it the running statistics are averages over all batches
  bool affine = true;
  bool track_running_stats = true;
};
/// Normalises over every dimension but 1. In training by the batch's statistics, which also move the running ones, in
/// place; otherwise by the running ones, if tracked. In replicas with sync_batch_norm the batch is that of all
/// replicas, and each of them must call it.
struct BatchNorm : Module {
  BatchNorm(std::int64_t num_features, const BatchNormOptions& options);
  Tensor forward(const Tensor& x);
  std::string extra_repr() const override;

  std::int64_t num_features;
  BatchNormOptions options;
  Parameter weight, bias;
  Buffer running_mean, running_var, num_batches_tracked;
  TANDEM_MODULE(BatchNorm, weight, bias, running_mean, running_var, num_batches_tracked)

 protected:
  /// ShapeError unless x has from `lo` to `hi` dimensions.
  void check_dims(const Tensor& x, int lo, int hi) const;
};
/// On (n, num_features) or (n, num_features, l).
struct BatchNorm1d : BatchNorm {
  explicit BatchNorm1d(std::int64_t n, const BatchNormOptions& o = {}) : BatchNorm(n, o) {}
  Tensor forward(const Tensor& x) {
    check_dims(x, 2, 3);
    return BatchNorm::forward(x);
  }
  TANDEM_MODULE(BatchNorm1d, weight, bias, running_mean, running_var, num_batches_tracked)
};
/// On (n, num_features, h, w).
struct BatchNorm2d : BatchNorm {
  explicit BatchNorm2d(std::int64_t n, const BatchNormOptions& o = {}) : BatchNorm(n, o) {}
  Tensor forward(const Tensor& x) {
    check_dims(x, 4, 4);
    return BatchNorm::forward(x);
  }
  TANDEM_MODULE(BatchNorm2d, weight, bias, running_mean, running_var, num_batches_tracked)
};

struct LayerNormOptions {
  double eps = 1e-5;
  bool elementwise_affine = true;
  bool bias = true;
};
/// Normalises over the last dimensions, which have the given shape.
struct LayerNorm : Module {
  explicit LayerNorm(const Shape& normalized_shape, const LayerNormOptions& options = {});
  explicit LayerNorm(std::int64_t size, const LayerNormOptions& o = {}) : LayerNorm(Shape{size}, o) {}
  Tensor forward(const Tensor& x) { return layer_norm(x, normalized_shape, weight, bias, options.eps); }
  std::string extra_repr() const override;

  Shape normalized_shape;
  LayerNormOptions options;
  Parameter weight, bias;
  TANDEM_MODULE(LayerNorm, weight, bias)
};

struct EmbeddingOptions {
  std::optional<std::int64_t> padding_idx = {};  ///< negative: from the end; this row starts as 0 and is not trained
};
/// int64 indices (...) to (..., embedding_dim). The weight (num_embeddings, embedding_dim) is drawn from N(0, 1).
struct Embedding : Module {
  Embedding(std::int64_t num_embeddings, std::int64_t embedding_dim, const EmbeddingOptions& options = {});
  Tensor forward(const Tensor& index) { return embedding(index, weight, padding_idx); }
  std::string extra_repr() const override;

  std::int64_t num_embeddings, embedding_dim;
  std::optional<std::int64_t> padding_idx;
  Parameter weight;
  TANDEM_MODULE(Embedding, weight)
};

/// In training zeroes elements with probability p and scales the others by 1 / (1 - p).
struct Dropout : Module {
  explicit Dropout(double p = 0.5);
  Tensor forward(const Tensor& x) { return dropout(x, p, training); }
  std::string extra_repr() const override;

  double p;
  TANDEM_MODULE(Dropout)
};

}  // namespace tandem::nn
