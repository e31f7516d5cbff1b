// Elementwise functions of one tensor, and their derivatives.

#include "../math/unary.h"

#include "cpu_backend.h"
#include "isa.h"
#include "rows.h"

#define TANDEM_ISA_SOURCE "unary.inl"
#include "each_isa.h"

namespace tandem::kernels::cpu {

void CpuBackend::unary(Stream& stream, UnaryOp op, const View& out, const View& in) const {
  RowKernel<2> kernel = nullptr;
  TANDEM_ISA_CALL(find_unary, op, out.dtype, kernel);
  run_rows(stream, plan_elementwise(out, in), kernel, Repeats::Walker, {&out, &in});
}

void CpuBackend::unary_backward(Stream& stream, UnaryOp op, const View& out, const View& g, const View& saved) const {
  // A derivative that needs nothing gets the gradient in place of `saved`, which may be any view then.
  const View& x = saves_of(op) == Saves::Nothing ? g : saved;
  RowKernel<3> kernel = nullptr;
  TANDEM_ISA_CALL(find_unary_backward, op, out.dtype, kernel);
  run_rows(stream, plan_elementwise(out, g, x), kernel, Repeats::Walker, {&out, &g, &x});
}

}  // namespace tandem::kernels::cpu
