#pragma once
// Initial values for parameters. Every function writes in place, off the tape, draws from the generator of the tensor's
// device, and returns its argument. Names and formulas are PyTorch's torch.nn.init.

#include <cstdint>

#include "../engine/tensor.h"

namespace tandem::nn::init {

/// Inputs and outputs of one unit of a weight (out, in, kernel...). ValueError below two dimensions.
struct Fans {
  std::int64_t in = 0;
  std::int64_t out = 0;
};
Fans fans(const Tensor& weight);

enum class FanMode { FanIn, FanOut };
enum class Nonlinearity { Linear, Sigmoid, Tanh, ReLU, LeakyReLU };
/// The factor by which a nonlinearity's input must be larger to keep the variance; `slope` is the leaky ReLU's.
double calculate_gain(Nonlinearity nonlinearity, double slope = 0.01);

Tensor& constant_(Tensor& t, double value);
Tensor& zeros_(Tensor& t);
Tensor& ones_(Tensor& t);
Tensor& uniform_(Tensor& t, double lo = 0, double hi = 1);
Tensor& normal_(Tensor& t, double mean = 0, double std = 1);

/// He et al. 2015: standard deviation gain / sqrt(fan). `slope` is that of the leaky ReLU behind the layer.
struct KaimingOptions {
  double slope = 0;
  FanMode mode = FanMode::FanIn;
  Nonlinearity nonlinearity = Nonlinearity::LeakyReLU;
};
Tensor& kaiming_uniform_(Tensor& t, const KaimingOptions& options = {});
Tensor& kaiming_normal_(Tensor& t, const KaimingOptions& options = {});

/// Glorot and Bengio 2010: standard deviation gain sqrt(2 / (fan in + fan out)).
Tensor& xavier_uniform_(Tensor& t, double gain = 1);
Tensor& xavier_normal_(Tensor& t, double gain = 1);

}  // namespace tandem::nn::init
