// Cross entropy of logits, fused with its log-softmax, and its gradient.
//
//   lse = log(sum of exp(x)),  loss = lse - x[target],  gx = (exp(x - lse) - onehot(target)) g
//
// The forward pass reads the logits once and writes two numbers a row; the backward pass reads them once and writes the
// gradient, without the probabilities in between. A warp or a block takes a row. Sums run in T over a thread's tile and
// in double over these. The loss is 0 and the gradient zero in ignored rows and where the target is out of range, which
// the forward pass reports.

#include "cuda_backend.h"
#include "rows.cuh"

namespace tandem::kernels::cuda {
namespace {

template <class T, int Threads>
__global__ void __launch_bounds__(RowGroup<Threads>::kThreads, RowGroup<Threads>::kResident)
    cross_entropy_rows(std::int64_t n, std::int64_t c, const T* x, const std::int64_t* target, std::int64_t ignore,
                       T* loss, T* lse, bool packed, const FaultSink faults) {
  using Tile = RowTile<T, Threads>;
  using Group = RowGroup<Threads>;
  for (std::int64_t row = Group::first(); row < n; row += Group::step()) {
    const T* logits = x + row * c;
    T max;
    double sum;
    if (c <= Tile::kSize) {
      Tile tile;
      tile.load(logits, static_cast<int>(c), packed, MaxSum<T>::kLowest);
      max = Group::max(tile.max());
      sum = c == 0 ? 0.0 : Group::sum(tile.exponentiate(max));  // of no logits, exp(-inf - max) is NaN
    } else {
      const MaxSum<T> all = max_sum_of_row<T, Threads>(logits, c, packed);
      max = all.max;
      sum = all.total();
    }
    if (Group::lane() == 0) {
      const T log_sum = static_cast<T>(math::log(sum));
      const std::int64_t t = target[row];
      lse[row] = max + log_sum;
      loss[row] = t != ignore && check_index(faults, t, c, row) ? max - logits[t] + log_sum : T(0);
    }
  }
}

template <class T, int Threads>
__global__ void __launch_bounds__(RowGroup<Threads>::kThreads, RowGroup<Threads>::kResident)
    cross_entropy_backward_rows(std::int64_t n, std::int64_t c, const T* g, const T* x, const T* lse,
                                const std::int64_t* target, std::int64_t ignore, T* gx, bool packed) {
  using Tile = RowTile<T, Threads>;
  using Group = RowGroup<Threads>;
  for (std::int64_t row = Group::first(); row < n; row += Group::step()) {
    const std::int64_t t = target[row];
    const bool counts = t != ignore && t >= 0 && t < c;
    const T scale = counts ? g[row] : T(0), shift = counts ? lse[row] : T(0);
    for (std::int64_t base = 0; base < c; base += Tile::kSize) {
      const int count = Tile::count(c, base);
      TANDEM_UNROLL
      for (int k = 0; k < Tile::kPacks; ++k) {
        auto pack = Tile::load_pack(x + row * c + base, count, packed, k, T(0));
        TANDEM_UNROLL
        for (int j = 0; j < Tile::kPer; ++j) {
          const T v = math::exp(pack.v[j] - shift) * scale;
          pack.v[j] = !counts ? T(0) : base + Tile::column(packed, k, j) == t ? v - scale : v;
        }
        Tile::store_pack(gx + row * c + base, count, packed, k, pack);
      }
    }
  }
}

}  // namespace

void CudaBackend::cross_entropy(Stream& stream, const View& loss, const View& lse, const View& x, const View& target,
                                std::int64_t ignore) const {
  Scope scope(stream, "cross_entropy");
  const std::int64_t n = x.shape[0], c = x.shape[1];
  visit_floating(x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const T* logits = x.as<const T>();
    launch_rows<T>(cross_entropy_rows<T, kRowWarp>, cross_entropy_rows<T, kRowBlock>, n, c, scope.stream(), n, c,
                   logits, target.as<const std::int64_t>(), ignore, loss.as<T>(), lse.as<T>(),
                   rows_packed<T>(c, logits), scope.faults());
  });
}

void CudaBackend::cross_entropy_backward(Stream& stream, const View& gx, const View& g, const View& x, const View& lse,
                                         const View& target, std::int64_t ignore) const {
  Scope scope(stream, "cross_entropy_backward");
  const std::int64_t n = x.shape[0], c = x.shape[1];
  if (c == 0) return;
  visit_floating(x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const T* logits = x.as<const T>();
    T* out = gx.as<T>();
    launch_rows<T>(cross_entropy_backward_rows<T, kRowWarp>, cross_entropy_backward_rows<T, kRowBlock>, n, c,
                   scope.stream(), n, c, g.as<const T>(), logits, lse.as<const T>(), target.as<const std::int64_t>(),
                   ignore, out, rows_packed<T>(c, logits, out));
  });
}

}  // namespace tandem::kernels::cuda
