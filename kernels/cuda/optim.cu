// Optimizer updates in place.
//
// Reads and writes per element: SGD 2 and 1, with momentum 3 and 2; Adam 4 and 3. Formulas are those of math/optim.h,
// with constants rounded as on the CPU; compiled without fusing a * b + c, for the bits of the CPU.

#include "../math/optim.h"

#include "common.cuh"
#include "cuda_backend.h"

namespace tandem::kernels::cuda {
namespace {

using Index = std::int64_t;

template <class T>
struct SgdPlain {
  static constexpr int arrays = 1;
  SgdUpdate<T> update;  ///< not nesterov
  __device__ void operator()(T (&x)[arrays], T g) const {
    const T d = update.gradient(x[0], g);
    x[0] = update.step(x[0], d, d);
  }
};

template <class T>
struct SgdMomentum {
  static constexpr int arrays = 2;
  SgdUpdate<T> update;
  __device__ void operator()(T (&x)[arrays], T g) const {
    const T d = update.gradient(x[0], g);
    x[1] = update.velocity(x[1], d);
    x[0] = update.step(x[0], d, x[1]);
  }
};

template <class T>
struct Adam {
  static constexpr int arrays = 3;
  AdamUpdate<T> update;
  __device__ void operator()(T (&x)[arrays], T g) const { update(x[0], g, x[1], x[2]); }
};

/// The parameters, then the optimizer's state.
template <class T, int K>
struct Arrays {
  T* v[K];
};

/// The first `packs` packs are aligned; single elements follow.
template <class T, class Step>
__global__ void __launch_bounds__(kBlock)
    update(const Step step, Index n, Index packs, const Arrays<T, Step::arrays> x, const T* g) {
  constexpr int per = kPackSize<T>, arrays = Step::arrays;
  using Values = Pack<T, per>;
  for (Index i = global_index(); i < packs; i += global_stride()) {
    const Values gradient = reinterpret_cast<const Values*>(g)[i];
    Values values[arrays];
    for (int k = 0; k < arrays; ++k) values[k] = reinterpret_cast<const Values*>(x.v[k])[i];
    for (int j = 0; j < per; ++j) {
      T element[arrays];
      for (int k = 0; k < arrays; ++k) element[k] = values[k].v[j];
      step(element, gradient.v[j]);
      for (int k = 0; k < arrays; ++k) values[k].v[j] = element[k];
    }
    for (int k = 0; k < arrays; ++k) reinterpret_cast<Values*>(x.v[k])[i] = values[k];
  }
  for (Index i = packs * per + global_index(); i < n; i += global_stride()) {
    T element[arrays];
    for (int k = 0; k < arrays; ++k) element[k] = x.v[k][i];
    step(element, g[i]);
    for (int k = 0; k < arrays; ++k) x.v[k][i] = element[k];
  }
}

template <class T, class Step>
void launch_update(const Scope& scope, const Step& step, Index n, const Arrays<T, Step::arrays>& x, const T* g) {
  bool aligned = is_aligned(g);
  for (const T* data : x.v) aligned &= is_aligned(data);
  const Index packs = aligned ? n / kPackSize<T> : 0, rest = n - packs * kPackSize<T>;
  launch(update<T, Step>, blocks_for(packs > rest ? packs : rest), kBlock, 0, scope.stream(), step, n, packs, x, g);
}

}  // namespace

void CudaBackend::sgd_step(Stream& stream, const View& p, const View& g, const View& velocity,
                           const SgdArgs& args) const {
  Scope scope(stream, "sgd_step");
  visit_floating(p.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const auto formula = SgdUpdate<T>::of(args);
    if (args.momentum == 0) {
      launch_update<T>(scope, SgdPlain<T>{formula}, p.numel(), {{p.as<T>()}}, g.as<const T>());
    } else {
      launch_update<T>(scope, SgdMomentum<T>{formula}, p.numel(), {{p.as<T>(), velocity.as<T>()}}, g.as<const T>());
    }
  });
}

void CudaBackend::adam_step(Stream& stream, const View& p, const View& g, const View& m, const View& v,
                            const AdamArgs& args) const {
  Scope scope(stream, "adam_step");
  visit_floating(p.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const auto formula = AdamUpdate<T>::of(args);
    launch_update<T>(scope, Adam<T>{formula}, p.numel(), {{p.as<T>(), m.as<T>(), v.as<T>()}}, g.as<const T>());
  });
}

}  // namespace tandem::kernels::cuda
