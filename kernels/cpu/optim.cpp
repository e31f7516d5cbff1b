// Optimizer updates.

#include "../math/optim.h"

#include <cmath>

#include "cpu_backend.h"
#include "isa.h"
#include "parallel.h"
#include "rows.h"

#define TANDEM_ISA_SOURCE "optim.inl"
#include "each_isa.h"

namespace tandem::kernels::cpu {

void CpuBackend::sgd_step(Stream& stream, const View& p, const View& g, const View& velocity,
                          const SgdArgs& args) const {
  visit_floating(p.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const SgdUpdate<T> update{static_cast<T>(args.lr),
                              static_cast<T>(args.momentum),
                              static_cast<T>(1 - args.dampening),
                              static_cast<T>(args.weight_decay),
                              args.nesterov,
                              args.first};
    if (args.momentum == 0) {
      TANDEM_ISA_CALL(sgd_plain, stream, p.numel(), p.as<T>(), g.as<T>(), update);
    } else {
      TANDEM_ISA_CALL(sgd_momentum, stream, p.numel(), p.as<T>(), g.as<T>(), velocity.as<T>(), update);
    }
  });
}

void CpuBackend::adam_step(Stream& stream, const View& p, const View& g, const View& m, const View& v,
                           const AdamArgs& args) const {
  const double step = static_cast<double>(args.step);
  visit_floating(p.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    AdamUpdate<T> update;
    update.beta1 = static_cast<T>(args.beta1);
    update.beta2 = static_cast<T>(args.beta2);
    update.one_minus_beta1 = static_cast<T>(1 - args.beta1);
    update.one_minus_beta2 = static_cast<T>(1 - args.beta2);
    update.eps = static_cast<T>(args.eps);
    update.step_size = static_cast<T>(args.lr / (1 - std::pow(args.beta1, step)));
    update.sqrt_bias_correction = static_cast<T>(std::sqrt(1 - std::pow(args.beta2, step)));
    update.weight_decay = static_cast<T>(args.decoupled ? 0 : args.weight_decay);
    update.shrink = static_cast<T>(args.decoupled ? 1 - args.lr * args.weight_decay : 1);
    TANDEM_ISA_CALL(adam, stream, p.numel(), p.as<T>(), g.as<T>(), m.as<T>(), v.as<T>(), update);
  });
}

}  // namespace tandem::kernels::cpu
