// Checks, promotion, and undoing of broadcasts, for all ops.

#include <fmt/format.h>

#include "../ops_internal.h"

namespace tandem {

void check_defined(const char* op, const char* what, const Tensor& t) {
  if (!t.defined()) throw ValueError(fmt::format("{}: {} is undefined", op, what));
}

Device check_device(const char* op, std::initializer_list<const Tensor*> tensors) {
  return check_device(op, std::span(tensors.begin(), tensors.size()));
}

Device check_device(const char* op, std::span<const Tensor* const> tensors) {
  const Tensor* first = nullptr;
  for (const Tensor* t : tensors) {
    if (!t->defined()) continue;
    if (first && t->device() != first->device()) {
      throw DeviceError(fmt::format("{}: the tensors are on two devices: {} and {}; move one with .to(device)", op,
                                    describe(*first), describe(*t)));
    }
    if (!first) first = t;
  }
  return first ? first->device() : cpu();
}

void check_floating(const char* op, const Tensor& t) {
  check_defined(op, "the tensor", t);
  if (!is_floating(t.dtype())) throw DTypeError(fmt::format("{}: wanted a floating tensor, got {}", op, describe(t)));
}

void check_dtype(const char* op, const char* what, const Tensor& t, DType wanted) {
  if (t.dtype() != wanted) {
    throw DTypeError(fmt::format("{}: {} must be {}, got {}", op, what, name_of(wanted), describe(t)));
  }
}

void check_dim(const char* op, const char* what, const Tensor& t, int wanted) {
  check_defined(op, what, t);
  if (t.dim() != wanted) {
    throw ShapeError(fmt::format("{}: {} must have {} dimensions, got {}", op, what, wanted, describe(t)));
  }
}

void check_index_fault(const char* op, const kernels::Stream& stream) {
  if (stream.index_fault.set) throw_index_error(op, stream.index_fault);
}

namespace {

/// bool 0, integer 1, floating 2.
int kind(DType t) { return t == kBool ? 0 : is_floating(t) ? 2 : 1; }

DType wider(DType a, DType b) {
  // uint8 and int32 are in order of width; no pair of ours needs a third type.
  return std::max(a, b);
}

}  // namespace

DType result_type(const Tensor& a, const Tensor& b) {
  if (a.dtype() == b.dtype()) return a.dtype();
  const bool both = (a.dim() == 0) == (b.dim() == 0);
  if (both) return wider(a.dtype(), b.dtype());
  const DType strong = a.dim() > 0 ? a.dtype() : b.dtype();
  const DType weak = a.dim() > 0 ? b.dtype() : a.dtype();
  return kind(weak) > kind(strong) ? weak : strong;
}

DType result_type(const Tensor& a, const Scalar& b) {
  if (kind(b.kind()) <= kind(a.dtype())) return a.dtype();
  return b.kind() == kFloat64 ? kFloat32 : kInt64;
}

Tensor reduce_to(const Tensor& grad, const Shape& shape) {
  if (grad.sizes() == shape) return grad;
  return sum_to(grad, shape);
}

}  // namespace tandem
