#pragma once
// The optimizers' update of one element, in the order of PyTorch's.

#include "elementary.h"
#include "hd.h"

namespace tandem::kernels {

/// d = gradient(p, g); v = velocity(v, d); p = step(p, d, v). Without momentum: p = step(p, d, d).
template <class T>
struct SgdUpdate {
  T lr, momentum, keep /* 1 - dampening */, weight_decay;
  bool nesterov, first;

  TANDEM_HD T gradient(T p, T g) const { return g + weight_decay * p; }
  TANDEM_HD T velocity(T v, T d) const { return first ? d : momentum * v + keep * d; }
  TANDEM_HD T step(T p, T d, T v) const { return p - lr * (nesterov ? d + momentum * v : v); }
};

template <class T>
struct AdamUpdate {
  T beta1, beta2, one_minus_beta1, one_minus_beta2, eps;
  T step_size;             ///< lr / (1 - beta1^step)
  T sqrt_bias_correction;  ///< sqrt(1 - beta2^step)
  T weight_decay;          ///< As a part of the gradient; 0 if decoupled.
  T shrink;                ///< 1 - lr weight_decay if decoupled, else 1.

  TANDEM_HD void operator()(T& p, T g, T& m, T& v) const {
    g = g + weight_decay * p;
    m = m + one_minus_beta1 * (g - m);
    v = beta2 * v + one_minus_beta2 * (g * g);
    p = shrink * p - step_size * (m / (math::sqrt(v) / sqrt_bias_correction + eps));
  }
};

}  // namespace tandem::kernels
