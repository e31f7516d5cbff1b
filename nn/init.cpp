// Initial values for parameters.

#include "init.h"

#include <fmt/format.h>

#include <cmath>

#include "../engine/context.h"
#include "../engine/error.h"

namespace tandem::nn::init {
namespace {

double kaiming_std(const Tensor& t, const KaimingOptions& options) {
  const Fans n = fans(t);
  const auto fan = static_cast<double>(options.mode == FanMode::FanIn ? n.in : n.out);
  return calculate_gain(options.nonlinearity, options.slope) / std::sqrt(fan);
}

double xavier_std(const Tensor& t, double gain) {
  const Fans n = fans(t);
  return gain * std::sqrt(2 / static_cast<double>(n.in + n.out));
}

/// A uniform distribution over [-b, b] has the standard deviation b / sqrt(3).
Tensor& uniform_of_std(Tensor& t, double std) {
  const double bound = std::sqrt(3.0) * std;
  return uniform_(t, -bound, bound);
}

}  // namespace

Fans fans(const Tensor& weight) {
  if (weight.dim() < 2) {
    throw ValueError(fmt::format("init: a weight with fans has two or more dimensions, got {}", describe(weight)));
  }
  const std::int64_t out = weight.size(0), in = weight.size(1);
  const std::int64_t kernel = in * out == 0 ? 0 : weight.numel() / (in * out);
  return {in * kernel, out * kernel};
}

double calculate_gain(Nonlinearity nonlinearity, double slope) {
  switch (nonlinearity) {
    case Nonlinearity::Linear:
    case Nonlinearity::Sigmoid: return 1;
    case Nonlinearity::Tanh: return 5.0 / 3;
    case Nonlinearity::ReLU: return std::sqrt(2.0);
    case Nonlinearity::LeakyReLU: break;
  }
  return std::sqrt(2 / (1 + slope * slope));
}

Tensor& constant_(Tensor& t, double value) {
  const NoGradGuard no_grad;
  return t.fill_(value);
}

Tensor& zeros_(Tensor& t) { return constant_(t, 0); }
Tensor& ones_(Tensor& t) { return constant_(t, 1); }

Tensor& uniform_(Tensor& t, double lo, double hi) {
  const NoGradGuard no_grad;
  return t.uniform_(lo, hi);
}

Tensor& normal_(Tensor& t, double mean, double std) {
  const NoGradGuard no_grad;
  return t.normal_(mean, std);
}

Tensor& kaiming_uniform_(Tensor& t, const KaimingOptions& options) {
  return uniform_of_std(t, kaiming_std(t, options));
}
Tensor& kaiming_normal_(Tensor& t, const KaimingOptions& options) { return normal_(t, 0, kaiming_std(t, options)); }
Tensor& xavier_uniform_(Tensor& t, double gain) { return uniform_of_std(t, xavier_std(t, gain)); }
Tensor& xavier_normal_(Tensor& t, double gain) { return normal_(t, 0, xavier_std(t, gain)); }

}  // namespace tandem::nn::init
