// Random numbers. Every instruction set draws the same, because nothing here fuses a * b + c.

#if defined(__clang__)
#pragma STDC FP_CONTRACT OFF
#elif defined(__GNUC__)
#pragma GCC optimize("fp-contract=off")
#endif

#include "../math/convert.h"
#include "../math/philox.h"
#include "cpu_backend.h"
#include "isa.h"
#include "parallel.h"
#include "rows.h"

#define TANDEM_ISA_SOURCE "random.inl"
#include "each_isa.h"

namespace tandem::kernels::cpu {

void CpuBackend::uniform(Stream& stream, const View& out, PhiloxState state, double lo, double hi) const {
  visit_floating(out.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    TANDEM_ISA_CALL(uniform, stream, out.as<T>(), out.numel(), state, static_cast<T>(lo), static_cast<T>(hi));
  });
}

void CpuBackend::normal(Stream& stream, const View& out, PhiloxState state, double mean, double std) const {
  visit_floating(out.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    TANDEM_ISA_CALL(normal, stream, out.as<T>(), out.numel(), state, static_cast<T>(mean), static_cast<T>(std));
  });
}

void CpuBackend::randint(Stream& stream, const View& out, PhiloxState state, std::int64_t lo, std::int64_t hi) const {
  visit_dtype(out.dtype, [&](auto tag) {
    TANDEM_ISA_CALL(randint, stream, out.as<typename decltype(tag)::type>(), out.numel(), state, lo, hi);
  });
}

void CpuBackend::dropout(Stream& stream, const View& out, const View& mask, const View& in, PhiloxState state,
                         double p) const {
  visit_floating(out.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    TANDEM_ISA_CALL(dropout, stream, out.as<T>(), mask.as<bool>(), in.as<T>(), out.numel(), state, p);
  });
}

}  // namespace tandem::kernels::cpu
