// Optimizer updates.

#include "../math/optim.h"

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
    const auto update = SgdUpdate<T>::of(args);
    if (args.momentum == 0) {
      TANDEM_ISA_CALL(sgd_plain, stream, p.numel(), p.as<T>(), g.as<T>(), update);
    } else {
      TANDEM_ISA_CALL(sgd_momentum, stream, p.numel(), p.as<T>(), g.as<T>(), velocity.as<T>(), update);
    }
  });
}

void CpuBackend::adam_step(Stream& stream, const View& p, const View& g, const View& m, const View& v,
                           const AdamArgs& args) const {
  visit_floating(p.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const auto update = AdamUpdate<T>::of(args);
    TANDEM_ISA_CALL(adam, stream, p.numel(), p.as<T>(), g.as<T>(), m.as<T>(), v.as<T>(), update);
  });
}

}  // namespace tandem::kernels::cpu
