// Batch and layer normalisation.

#include <algorithm>

#include "cpu_backend.h"
#include "isa.h"
#include "parallel.h"
#include "vector.h"

#define TANDEM_ISA_SOURCE "norm.inl"
#include "each_isa.h"

namespace tandem::kernels::cpu {
namespace {

constexpr std::int64_t kGrain = 1 << 14;  // elements worth a thread

std::int64_t grain(std::int64_t elements_each) { return std::max<std::int64_t>(1, kGrain / (elements_each + 1)); }

/// As grain, for columns: whole stretches of them, so that the loops stay wide.
std::int64_t column_grain(std::int64_t rows) { return std::max<std::int64_t>(32, grain(rows)); }

}  // namespace

void CpuBackend::channel_stats(Stream& stream, const View& mean, const View& var, const View& x) const {
  const std::int64_t n = x.shape[0], c = x.shape[1], inner = x.shape[2];
  visit_floating(x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    if (inner == 1) {
      parallel_for(stream, c, column_grain(n), [&](std::int64_t begin, std::int64_t end) {
        TANDEM_ISA_CALL(channel_stats_columns<T>, begin, end, n, c, x.as<const T>(), mean.as<T>(), var.as<T>());
      });
    } else {
      parallel_for(stream, c, grain(n * inner), [&](std::int64_t begin, std::int64_t end) {
        TANDEM_ISA_CALL(channel_stats_planes<T>, begin, end, n, c, inner, x.as<const T>(), mean.as<T>(), var.as<T>());
      });
    }
  });
}

void CpuBackend::batch_norm(Stream& stream, const View& out, const View& x, const View& mean, const View& invstd,
                            const View& w, const View& b) const {
  const std::int64_t n = x.shape[0], c = x.shape[1], inner = x.shape[2];
  visit_floating(x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    if (inner == 1) {
      parallel_for(stream, n, grain(c), [&](std::int64_t begin, std::int64_t end) {
        TANDEM_ISA_CALL(batch_norm_columns<T>, begin, end, c, x.as<const T>(), mean.as<const T>(), invstd.as<const T>(),
                        w.as<const T>(), b.as<const T>(), out.as<T>());
      });
    } else {
      parallel_for(stream, n * c, grain(inner), [&](std::int64_t begin, std::int64_t end) {
        TANDEM_ISA_CALL(batch_norm_planes<T>, begin, end, c, inner, x.as<const T>(), mean.as<const T>(),
                        invstd.as<const T>(), w.as<const T>(), b.as<const T>(), out.as<T>());
      });
    }
  });
}

void CpuBackend::batch_norm_backward(Stream& stream, const View& gx, const View& gw, const View& gb, const View& g,
                                     const View& x, const View& mean, const View& invstd, const View& w,
                                     bool training) const {
  const std::int64_t n = x.shape[0], c = x.shape[1], inner = x.shape[2];
  visit_floating(x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    if (inner == 1) {
      parallel_for(stream, c, column_grain(n), [&](std::int64_t begin, std::int64_t end) {
        TANDEM_ISA_CALL(batch_norm_backward_columns<T>, begin, end, n, c, g.as<const T>(), x.as<const T>(),
                        mean.as<const T>(), invstd.as<const T>(), w.as<const T>(), training, gx.as<T>(), gw.as<T>(),
                        gb.as<T>());
      });
    } else {
      parallel_for(stream, c, grain(n * inner), [&](std::int64_t begin, std::int64_t end) {
        TANDEM_ISA_CALL(batch_norm_backward_planes<T>, begin, end, n, c, inner, g.as<const T>(), x.as<const T>(),
                        mean.as<const T>(), invstd.as<const T>(), w.as<const T>(), training, gx.as<T>(), gw.as<T>(),
                        gb.as<T>());
      });
    }
  });
}

void CpuBackend::layer_norm(Stream& stream, const View& out, const View& mean, const View& invstd, const View& x,
                            const View& w, const View& b, double eps) const {
  const std::int64_t n = x.shape[0], c = x.shape[1];
  visit_floating(x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    parallel_for(stream, n, grain(c), [&](std::int64_t begin, std::int64_t end) {
      TANDEM_ISA_CALL(layer_norm_rows<T>, begin, end, c, x.as<const T>(), w.as<const T>(), b.as<const T>(), eps,
                      out.as<T>(), mean.as<T>(), invstd.as<T>());
    });
  });
}

void CpuBackend::layer_norm_backward(Stream& stream, const View& gx, const View& gw, const View& gb, const View& g,
                                     const View& x, const View& mean, const View& invstd, const View& w) const {
  const std::int64_t n = x.shape[0], c = x.shape[1];
  visit_floating(x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    if (gx.data != nullptr) {
      parallel_for(stream, n, grain(c), [&](std::int64_t begin, std::int64_t end) {
        TANDEM_ISA_CALL(layer_norm_backward_rows<T>, begin, end, c, g.as<const T>(), x.as<const T>(),
                        mean.as<const T>(), invstd.as<const T>(), w.as<const T>(), gx.as<T>());
      });
    }
    if (gw.data == nullptr && gb.data == nullptr) return;
    parallel_for(stream, c, column_grain(n), [&](std::int64_t begin, std::int64_t end) {
      TANDEM_ISA_CALL(layer_norm_backward_columns<T>, begin, end, n, c, g.as<const T>(), x.as<const T>(),
                      mean.as<const T>(), invstd.as<const T>(), gw.as<T>(), gb.as<T>());
    });
  });
}

}  // namespace tandem::kernels::cpu
