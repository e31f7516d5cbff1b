#pragma once
// The optimizers' update of one element, in the order of PyTorch's.

#include <cmath>

#include "../backend.h"
#include "elementary.h"
#include "hd.h"

namespace tandem::kernels {

/// d = gradient(p, g); v = velocity(v, d); p = step(p, d, v). Without momentum: p = step(p, d, d).
template <class T>
struct SgdUpdate {
  T lr, momentum, keep /* 1 - dampening */, weight_decay;
  bool nesterov, first;

  static SgdUpdate of(const SgdArgs& a) {
    // Without momentum there is no velocity to look ahead with.
    return {static_cast<T>(a.lr),           static_cast<T>(a.momentum),      static_cast<T>(1 - a.dampening),
            static_cast<T>(a.weight_decay), a.nesterov && a.momentum != 0.0, a.first};
  }

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

  static AdamUpdate of(const AdamArgs& a) {
    const double step = static_cast<double>(a.step);
    AdamUpdate u;
    u.beta1 = static_cast<T>(a.beta1);
    u.beta2 = static_cast<T>(a.beta2);
    u.one_minus_beta1 = static_cast<T>(1 - a.beta1);
    u.one_minus_beta2 = static_cast<T>(1 - a.beta2);
    u.eps = static_cast<T>(a.eps);
    u.step_size = static_cast<T>(a.lr / (1 - std::pow(a.beta1, step)));
    u.sqrt_bias_correction = static_cast<T>(std::sqrt(1 - std::pow(a.beta2, step)));
    u.weight_decay = static_cast<T>(a.decoupled ? 0 : a.weight_decay);
    u.shrink = static_cast<T>(a.decoupled ? 1 - a.lr * a.weight_decay : 1);
    return u;
  }

  TANDEM_HD void operator()(T& p, T g, T& m, T& v) const {
    g = g + weight_decay * p;
    m = m + one_minus_beta1 * (g - m);
    v = beta2 * v + one_minus_beta2 * (g * g);
    p = shrink * p - step_size * (m / (math::sqrt(v) / sqrt_bias_correction + eps));
  }
};

}  // namespace tandem::kernels
