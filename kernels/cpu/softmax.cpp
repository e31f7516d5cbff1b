// Softmax, log-softmax and cross entropy.

#include <algorithm>

#include "../math/elementary.h"
#include "cpu_backend.h"
#include "index_fault.h"
#include "isa.h"
#include "parallel.h"
#include "vector.h"

#define TANDEM_ISA_SOURCE "softmax.inl"
#include "each_isa.h"

namespace tandem::kernels::cpu {
namespace {

constexpr std::int64_t kGrain = 1 << 12;  // elements worth a thread: each costs an exp
constexpr std::int64_t kColumns = isa_base::kColumns;

/// A contiguous tensor as (outer, c, inner) around dimension `dim`.
struct Split {
  Split(const View& v, int dim) : c(v.shape[dim]) {
    for (int i = 0; i < dim; ++i) outer *= v.shape[i];
    for (int i = dim + 1; i < v.ndim; ++i) inner *= v.shape[i];
  }
  std::int64_t outer = 1, c, inner = 1;
};

std::int64_t grain(std::int64_t elements_each) { return std::max<std::int64_t>(1, kGrain / (elements_each + 1)); }

/// Calls f(offset, width) for every stretch of at most kColumns neighbouring columns.
template <class F>
void for_columns(const Stream& stream, const Split& s, F&& f) {
  const std::int64_t stretches = (s.inner + kColumns - 1) / kColumns;
  parallel_for(stream, s.outer * stretches, grain(s.c * kColumns), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const std::int64_t first = i % stretches * kColumns;
      f(i / stretches * s.c * s.inner + first, std::min(kColumns, s.inner - first));
    }
  });
}

}  // namespace

void CpuBackend::softmax(Stream& stream, const View& out, const View& in, int dim, bool log) const {
  const Split s(in, dim);
  visit_floating(in.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    if (s.inner == 1) {
      parallel_for(stream, s.outer, grain(s.c), [&](std::int64_t begin, std::int64_t end) {
        TANDEM_ISA_CALL(softmax_rows<T>, begin, end, s.c, in.as<const T>(), out.as<T>(), log);
      });
    } else {
      for_columns(stream, s, [&](std::int64_t offset, std::int64_t width) {
        TANDEM_ISA_CALL(softmax_columns<T>, width, s.c, s.inner, in.as<const T>() + offset, out.as<T>() + offset, log);
      });
    }
  });
}

void CpuBackend::softmax_backward(Stream& stream, const View& gx, const View& g, const View& y, int dim,
                                  bool log) const {
  const Split s(y, dim);
  visit_floating(y.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    if (s.inner == 1) {
      parallel_for(stream, s.outer, grain(s.c), [&](std::int64_t begin, std::int64_t end) {
        TANDEM_ISA_CALL(softmax_backward_rows<T>, begin, end, s.c, g.as<const T>(), y.as<const T>(), gx.as<T>(), log);
      });
    } else {
      for_columns(stream, s, [&](std::int64_t offset, std::int64_t width) {
        TANDEM_ISA_CALL(softmax_backward_columns<T>, width, s.c, s.inner, g.as<const T>() + offset,
                        y.as<const T>() + offset, gx.as<T>() + offset, log);
      });
    }
  });
}

void CpuBackend::cross_entropy(Stream& stream, const View& loss, const View& lse, const View& x, const View& target,
                               std::int64_t ignore) const {
  const std::int64_t n = x.shape[0], c = x.shape[1];
  const std::int64_t* t = target.as<const std::int64_t>();
  for (std::int64_t i = 0; i < n; ++i) {
    if (t[i] != ignore && !in_range(t[i], c)) report_fault(stream, i, t[i], c);
  }
  visit_floating(x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    parallel_for(stream, n, grain(c), [&](std::int64_t begin, std::int64_t end) {
      TANDEM_ISA_CALL(cross_entropy_rows<T>, begin, end, c, x.as<const T>(), t, ignore, loss.as<T>(), lse.as<T>());
    });
  });
}

void CpuBackend::cross_entropy_backward(Stream& stream, const View& gx, const View& g, const View& x, const View& lse,
                                        const View& target, std::int64_t ignore) const {
  const std::int64_t n = x.shape[0], c = x.shape[1];
  visit_floating(x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    parallel_for(stream, n, grain(c), [&](std::int64_t begin, std::int64_t end) {
      TANDEM_ISA_CALL(cross_entropy_backward_rows<T>, begin, end, c, g.as<const T>(), x.as<const T>(),
                      lse.as<const T>(), target.as<const std::int64_t>(), ignore, gx.as<T>());
    });
  });
}

}  // namespace tandem::kernels::cpu
