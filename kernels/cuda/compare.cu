// Elementwise comparison: two reads per element, and a byte written.

#include "../math/compare.h"

#include "cuda_backend.h"
#include "elementwise.cuh"

namespace tandem::kernels::cuda {
namespace {

template <class F>
struct Compare {
  template <class T>
  __device__ bool operator()(T a, T b) const {
    return F::forward(a, b);
  }
};

}  // namespace

void CudaBackend::compare(Stream& stream, CompareOp op, const View& out, const Operand& a, const Operand& b) const {
  Scope scope(stream, "compare");
  const DType dtype = !a.is_scalar ? a.view.dtype : (!b.is_scalar ? b.view.dtype : kFloat64);
  visit_dtype(dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const Input<T> x(a), y(b);
    switch (op) {
#define TANDEM_CASE(F)                         \
  case CompareOp::F:                           \
    map<bool>(scope, out, Compare<F>{}, x, y); \
    break;
      TANDEM_COMPARE_OPS(TANDEM_CASE)
#undef TANDEM_CASE
    }
  });
}

}  // namespace tandem::kernels::cuda
