// Copies, casts and transfers.

#include <fmt/format.h>

#include "../ops_internal.h"

namespace tandem {
void copy_values(const Tensor& to, const Tensor& from) {
  const bool near = to.device() == from.device();
  const bool shared = to.device().type == DeviceType::CPU && from.device().type == DeviceType::CPU;
  if (near || shared) {
    kernels::Stream stream = stream_for(to.device());
    backend(to.device()).copy(stream, raw(to), raw(from));
    return;
  }
  const NoGradGuard no_grad;
  const Tensor source = contiguous(from.detach());
  const bool direct = to.is_contiguous() && to.sizes() == from.sizes();
  const Tensor landing = direct ? to : new_tensor(from.sizes(), from.dtype(), to.device());
  const auto* bytes = static_cast<const std::byte*>(source.data_ptr());
  copy_bytes(to.device(), static_cast<std::byte*>(landing.data_ptr()), from.device(), bytes, source.nbytes());
  if (!direct) copy_values(to, landing);
}

namespace {

Tensor copied(const char* name, const Tensor& x) {
  check_defined(name, "the tensor", x);
  Tensor out = new_tensor(x.sizes(), x.dtype(), x.device());
  copy_values(out, x);
  if (needs_grad(x)) record(name, out, {x}, [](GradContext& c) { c.set(0, c.grad()); });
  return out;
}

}  // namespace

Tensor clone(const Tensor& x) { return copied("clone", x); }

Tensor contiguous(const Tensor& x) {
  check_defined("contiguous", "the tensor", x);
  return x.is_contiguous() ? x : copied("contiguous", x);
}

Tensor to(const Tensor& x, DType dtype) {
  check_defined("to", "the tensor", x);
  if (x.dtype() == dtype) return x;
  Tensor out = new_tensor(x.sizes(), dtype, x.device());
  copy_values(out, x);
  if (is_floating(dtype) && needs_grad(x)) {
    record("to_dtype", out, {x}, [from = x.dtype()](GradContext& c) { c.set(0, to(c.grad(), from)); });
  }
  return out;
}

Tensor to(const Tensor& x, Device device) {
  check_defined("to", "the tensor", x);
  if (x.device() == device) return x;
  Tensor out = new_tensor(x.sizes(), x.dtype(), device);
  copy_values(out, x);
  if (needs_grad(x)) {
    record("to_device", out, {x}, [home = x.device()](GradContext& c) { c.set(0, to(c.grad(), home)); });
  }
  return out;
}

Tensor& Tensor::copy_(const Tensor& src) {
  check_defined("copy_", "the tensor", *this);
  check_defined("copy_", "the source", src);
  if (broadcast_shapes("copy_", sizes(), src.sizes()) != sizes()) {
    throw ShapeError(fmt::format("copy_: {} does not broadcast to {}", str(src.sizes()), str(sizes())));
  }
  return change_inplace(
      "copy_", *this, {&src},
      [&] {
        const NoGradGuard no_grad;
        Tensor from = src.to(device());
        // Elements of one storage at other places must be read before they are overwritten.
        if (from.impl()->storage == impl()->storage) from = tandem::clone(from);
        copy_values(*this, from);
      },
      [&](const Tensor&) { return src.to(device()).to(dtype()).expand(sizes()); });
}

Tensor& Tensor::fill_(const Scalar& value) {
  return change_inplace(
      "fill_", *this, {},
      [&] {
        kernels::Stream stream = stream_for(device());
        backend(device()).fill(stream, raw(*this), value);
      },
      [&](const Tensor& old) { return full(old.sizes(), value, old.dtype(), old.device()); });
}

// The methods of Tensor that are functions of ops.h.
Tensor Tensor::contiguous() const { return tandem::contiguous(*this); }
Tensor Tensor::clone() const { return tandem::clone(*this); }
Tensor Tensor::to(DType dtype) const { return tandem::to(*this, dtype); }
Tensor Tensor::to(Device device) const { return tandem::to(*this, device); }
Tensor Tensor::sum() const { return tandem::sum(*this); }
Tensor Tensor::sum(const Shape& dims, bool keepdim) const { return tandem::sum(*this, dims, keepdim); }
Tensor Tensor::mean() const { return tandem::mean(*this); }
Tensor Tensor::mean(const Shape& dims, bool keepdim) const { return tandem::mean(*this, dims, keepdim); }
Tensor Tensor::max() const { return tandem::max(*this); }
Tensor Tensor::min() const { return tandem::min(*this); }
Tensor Tensor::argmax() const { return tandem::argmax(*this); }
Tensor Tensor::argmax(std::int64_t dim, bool keepdim) const { return tandem::argmax(*this, dim, keepdim); }
Tensor Tensor::matmul(const Tensor& other) const { return tandem::matmul(*this, other); }

}  // namespace tandem
