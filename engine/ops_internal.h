#pragma once
// What the implementations of operations share. Internal.

#include <initializer_list>
#include <string>

#include "../kernels/backend.h"
#include "autograd.h"
#include "error.h"
#include "ops.h"
#include "runtime.h"
#include "tensor.h"

namespace tandem {

/// An uninitialised contiguous tensor; sizes are valid.
Tensor new_tensor(const Shape& shape, DType dtype, Device device);
/// A tensor that shows elements of x's storage, known to the tape as a view of x.
Tensor view_of(const Tensor& x, const Shape& shape, const Shape& strides, std::int64_t offset);
/// The same elements off the tape, sharing memory and version, and no view of anything.
Tensor alias_of(const Tensor& x);
/// Says that the elements of x have changed.
void bump_version(const Tensor& x);
/// Writes the elements of `from`, which broadcasts, into those of `to`; they may be on two devices, then of one dtype.
/// Neither the tape nor the version learns of it.
void copy_values(const Tensor& to, const Tensor& from);

inline kernels::View raw(const Tensor& t) {
  const TensorImpl& i = *t.impl();
  return {i.numel > 0 ? i.data() : nullptr, i.shape.data(), i.strides.data(), i.shape.size(), i.dtype};
}
/// As raw(t), with null data for an undefined tensor.
inline kernels::View raw_or_null(const Tensor& t) { return t.defined() ? raw(t) : kernels::View{}; }

// ---- checks; `op` opens the message
void check_defined(const char* op, const char* what, const Tensor& t);
/// All defined ones on one device; returns it.
Device check_device(const char* op, std::initializer_list<const Tensor*> tensors);
Device check_device(const char* op, std::span<const Tensor* const> tensors);
void check_floating(const char* op, const Tensor& t);
void check_dtype(const char* op, const char* what, const Tensor& t, DType wanted);
void check_dim(const char* op, const char* what, const Tensor& t, int wanted);
/// Throws the IndexError that a kernel of a CPU device met; those of CUDA devices are met later, where one waits.
void check_index_fault(const char* op, const kernels::Stream& stream);

// ---- promotion
DType result_type(const Tensor& a, const Tensor& b);
DType result_type(const Tensor& a, const Scalar& b);
/// float32 for integers, else the dtype itself.
inline DType floating_type(DType t) { return is_floating(t) ? t : kFloat32; }

/// x.sum over what broadcasting had stretched; differentiable.
Tensor reduce_to(const Tensor& grad, const Shape& shape);

// ---- in-place changes
/// Throws unless `self` may be changed by operands `other`: no overlapping elements, no leaf that needs a gradient,
/// no piece of split() on the tape. Returns whether the change must be recorded.
bool check_inplace(const char* op, const Tensor& self, std::initializer_list<const Tensor*> others);
/// After self's elements were replaced by those of `value`: gives self the history of `value`.
void rebase_history(const Tensor& self, const Tensor& value);

/// Runs an in-place op: `direct()` writes self's elements; `functional(old)` computes the new value from a recorded
/// copy of the old one, when the tape must know.
template <class Direct, class Functional>
Tensor& change_inplace(const char* op, Tensor& self, std::initializer_list<const Tensor*> others, Direct direct,
                       Functional functional) {
  if (!check_inplace(op, self, others)) {
    direct();
    bump_version(self);
    return self;
  }
  const Tensor value = functional(clone(self));
  copy_values(self, value);
  bump_version(self);
  rebase_history(self, value);
  return self;
}

}  // namespace tandem
