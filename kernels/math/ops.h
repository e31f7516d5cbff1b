#pragma once
// The lists of elementwise formulas and reductions. A formula is a functor of the same name in unary.h, binary.h
// or compare.h; a line here makes it known to every backend and, for unary ops, declares the tensor function.
//
// To add a unary op: write its functor in unary.h, add a line here, and give its record in engine/ops/unary.cpp.

namespace tandem::kernels {

/// X(Functor, function name)
#define TANDEM_UNARY_OPS(X) \
  X(Neg, neg)               \
  X(Abs, abs)               \
  X(Sign, sign)             \
  X(Exp, exp)               \
  X(Log, log)               \
  X(Sqrt, sqrt)             \
  X(Rsqrt, rsqrt)           \
  X(Reciprocal, reciprocal) \
  X(Square, square)         \
  X(Sin, sin)               \
  X(Cos, cos)               \
  X(Tanh, tanh)             \
  X(Sigmoid, sigmoid)       \
  X(Relu, relu)             \
  X(Gelu, gelu)             \
  X(Silu, silu)

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

#define TANDEM_ENUMERATOR_1(F) F,
#define TANDEM_ENUMERATOR_2(F, name) F,
enum class UnaryOp { TANDEM_UNARY_OPS(TANDEM_ENUMERATOR_2) };
enum class BinaryOp { TANDEM_BINARY_OPS(TANDEM_ENUMERATOR_1) };
enum class CompareOp { TANDEM_COMPARE_OPS(TANDEM_ENUMERATOR_1) };
#undef TANDEM_ENUMERATOR_1
#undef TANDEM_ENUMERATOR_2

enum class ReduceOp { Sum, Max, Min };

/// What the derivative of a unary op is a function of, besides the incoming gradient.
enum class Saves { Nothing, Input, Output };

}  // namespace tandem::kernels
