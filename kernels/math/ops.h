#pragma once
// The lists of elementwise formulas of two operands and of reductions; those of one operand are in unary.h. A formula
// is a functor of the same name in binary.h or compare.h; a line here makes it known to every backend.

#include "unary.h"

namespace tandem::kernels {

/// Operands and result have one dtype. For bool, Add is or, Mul is and.
#define TANDEM_BINARY_OPS(X) \
  X(Add)                     \
  X(Sub)                     \
  X(Mul)                     \
  X(Div)                     \
  X(Pow)                     \
  X(Maximum)                 \
  X(Minimum)

/// Operands have one dtype, the result is bool.
#define TANDEM_COMPARE_OPS(X) \
  X(Eq)                       \
  X(Ne)                       \
  X(Lt)                       \
  X(Le)                       \
  X(Gt)                       \
  X(Ge)

#define TANDEM_ENUMERATOR(F) F,
enum class BinaryOp { TANDEM_BINARY_OPS(TANDEM_ENUMERATOR) };
enum class CompareOp { TANDEM_COMPARE_OPS(TANDEM_ENUMERATOR) };
#undef TANDEM_ENUMERATOR

enum class ReduceOp { Sum, Max, Min };

}  // namespace tandem::kernels
