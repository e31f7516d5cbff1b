// Elementwise arithmetic, comparison and choice of two operands.

#include "../math/binary.h"

#include "../math/compare.h"
#include "../math/short_power.h"
#include "cpu_backend.h"
#include "isa.h"
#include "rows.h"

#define TANDEM_ISA_SOURCE "binary.inl"
#include "each_isa.h"

namespace tandem::kernels::cpu {

void CpuBackend::binary(Stream& stream, BinaryOp op, const View& out, const Operand& a, const Operand& b) const {
  ScalarStorage a_storage, b_storage;
  const View x = operand_view(a, out.dtype, a_storage);
  if (op == BinaryOp::Pow && b.is_scalar && is_floating(out.dtype)) {
    RowKernel<2> kernel = nullptr;
    TANDEM_ISA_CALL(find_short_power, b.scalar.to<double>(), out.dtype, kernel);
    if (kernel != nullptr) return run_rows(stream, plan_elementwise(out, x), kernel, Repeats::Walker, {&out, &x});
  }
  const View y = operand_view(b, out.dtype, b_storage);
  RowKernel<3> kernel = nullptr;
  TANDEM_ISA_CALL(find_binary, op, out.dtype, kernel);
  run_rows(stream, plan_elementwise(out, x, y), kernel, Repeats::Kernel, {&out, &x, &y});
}

void CpuBackend::compare(Stream& stream, CompareOp op, const View& out, const Operand& a, const Operand& b) const {
  DType dtype = !a.is_scalar ? a.view.dtype : (!b.is_scalar ? b.view.dtype : kFloat64);
  ScalarStorage a_storage, b_storage;
  const View x = operand_view(a, dtype, a_storage), y = operand_view(b, dtype, b_storage);
  RowKernel<3> kernel = nullptr;
  TANDEM_ISA_CALL(find_compare, op, dtype, kernel);
  run_rows(stream, plan_elementwise(out, x, y), kernel, Repeats::Kernel, {&out, &x, &y});
}

void CpuBackend::clamp(Stream& stream, const View& out, const View& in, const Scalar& lo, const Scalar& hi) const {
  ScalarStorage lo_storage, hi_storage;
  const View low = operand_view(lo, out.dtype, lo_storage), high = operand_view(hi, out.dtype, hi_storage);
  RowKernel<4> kernel = nullptr;
  TANDEM_ISA_CALL(find_clamp, out.dtype, kernel);
  run_rows(stream, plan_elementwise(out, in, low, high), kernel, Repeats::Kernel, {&out, &in, &low, &high});
}

void CpuBackend::where(Stream& stream, const View& out, const View& cond, const Operand& a, const Operand& b) const {
  ScalarStorage a_storage, b_storage;
  const View x = operand_view(a, out.dtype, a_storage), y = operand_view(b, out.dtype, b_storage);
  RowKernel<4> kernel = nullptr;
  TANDEM_ISA_CALL(find_where, out.dtype, kernel);
  run_rows(stream, plan_elementwise(out, cond, x, y), kernel, Repeats::Kernel, {&out, &cond, &x, &y});
}

}  // namespace tandem::kernels::cpu
