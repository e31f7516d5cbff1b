// Comparisons, from the functors of math/compare.h. Traffic: one read per array, one byte written per element.

#include "../math/compare.h"

#include "cuda_backend.h"
#include "elementwise.cuh"

namespace tandem::kernels::cuda {
namespace {

template <class Op>
struct Test {
  template <class T>
  __device__ bool operator()(T a, T b) const {
    return Op::forward(a, b);
  }
};

}  // namespace

void CudaBackend::compare(Stream& stream, CompareOp op, const View& out, const Operand& a, const Operand& b) const {
  const Scope scope(stream, "compare");
  const auto plan = plan_elementwise(out, plan_view(a), plan_view(b));
  visit_dtype(!a.is_scalar ? a.view.dtype : (!b.is_scalar ? b.view.dtype : kFloat64), [&](auto tag) {
    using T = typename decltype(tag)::type;
    switch (op) {
#define TANDEM_CASE(Op)                                                                               \
  case CompareOp::Op:                                                                                 \
    launch_elementwise(scope.stream(), plan, Test<Op>{}, out.as<bool>(), source<T>(a), source<T>(b)); \
    break;
      TANDEM_COMPARE_OPS(TANDEM_CASE)
#undef TANDEM_CASE
    }
  });
}

}  // namespace tandem::kernels::cuda
