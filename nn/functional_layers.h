#pragma once
// Layers without parameters: activations, pooling, reshaping, losses. Each is the op of the same name, see
// ../engine/ops.h.

#include <cstdint>
#include <string>

#include "layers.h"

namespace tandem::nn {

struct ReLU : Module {
  Tensor forward(const Tensor& x) { return relu(x); }
  TANDEM_MODULE(ReLU)
};
struct GELU : Module {
  Tensor forward(const Tensor& x) { return gelu(x); }
  TANDEM_MODULE(GELU)
};
struct SiLU : Module {
  Tensor forward(const Tensor& x) { return silu(x); }
  TANDEM_MODULE(SiLU)
};
struct Tanh : Module {
  Tensor forward(const Tensor& x) { return tanh(x); }
  TANDEM_MODULE(Tanh)
};
struct Sigmoid : Module {
  Tensor forward(const Tensor& x) { return sigmoid(x); }
  TANDEM_MODULE(Sigmoid)
};
struct Softmax : Module {
  explicit Softmax(std::int64_t d) : dim(d) {}
  Tensor forward(const Tensor& x) { return softmax(x, dim); }
  std::string extra_repr() const override { return "dim=" + std::to_string(dim); }

  std::int64_t dim;
  TANDEM_MODULE(Softmax)
};
struct LogSoftmax : Module {
  explicit LogSoftmax(std::int64_t d) : dim(d) {}
  Tensor forward(const Tensor& x) { return log_softmax(x, dim); }
  std::string extra_repr() const override { return "dim=" + std::to_string(dim); }

  std::int64_t dim;
  TANDEM_MODULE(LogSoftmax)
};

struct PoolOptions {
  Size2d stride = 0;  ///< 0: the kernel's size
  Size2d padding = 0;
};
struct Pool2d : Module {
  Pool2d(Size2d kernel_size, const PoolOptions& options);
  std::string extra_repr() const override;

  Size2d kernel_size, stride, padding;
};
struct MaxPool2d : Pool2d {
  explicit MaxPool2d(Size2d kernel, const PoolOptions& options = {}) : Pool2d(kernel, options) {}
  Tensor forward(const Tensor& x) { return max_pool2d(x, kernel_size.pair(), stride.pair(), padding.pair()); }
  TANDEM_MODULE(MaxPool2d)
};
struct AvgPool2d : Pool2d {
  explicit AvgPool2d(Size2d kernel, const PoolOptions& options = {}) : Pool2d(kernel, options) {}
  Tensor forward(const Tensor& x) { return avg_pool2d(x, kernel_size.pair(), stride.pair(), padding.pair()); }
  TANDEM_MODULE(AvgPool2d)
};

struct Flatten : Module {
  explicit Flatten(std::int64_t start = 1, std::int64_t end = -1) : start_dim(start), end_dim(end) {}
  Tensor forward(const Tensor& x) { return flatten(x, start_dim, end_dim); }
  std::string extra_repr() const override {
    return "start_dim=" + std::to_string(start_dim) + ", end_dim=" + std::to_string(end_dim);
  }

  std::int64_t start_dim, end_dim;
  TANDEM_MODULE(Flatten)
};
struct Identity : Module {
  Tensor forward(const Tensor& x) { return x; }
  TANDEM_MODULE(Identity)
};

struct LossOptions {
  Reduction reduction = Reduction::Mean;
};
struct MSELoss : Module {
  explicit MSELoss(const LossOptions& o = {}) : reduction(o.reduction) {}
  Tensor forward(const Tensor& x, const Tensor& y) { return mse_loss(x, y, reduction); }

  Reduction reduction;
  TANDEM_MODULE(MSELoss)
};

struct ClassLossOptions {
  Reduction reduction = Reduction::Mean;
  std::int64_t ignore_index = -100;
};
struct CrossEntropyLoss : Module {
  explicit CrossEntropyLoss(const ClassLossOptions& o = {}) : options(o) {}
  Tensor forward(const Tensor& x, const Tensor& target) {
    return cross_entropy(x, target, options.reduction, options.ignore_index);
  }

  ClassLossOptions options;
  TANDEM_MODULE(CrossEntropyLoss)
};
struct NLLLoss : Module {
  explicit NLLLoss(const ClassLossOptions& o = {}) : options(o) {}
  Tensor forward(const Tensor& log_p, const Tensor& target) {
    return nll_loss(log_p, target, options.reduction, options.ignore_index);
  }

  ClassLossOptions options;
  TANDEM_MODULE(NLLLoss)
};

}  // namespace tandem::nn
