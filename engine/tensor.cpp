#include "tensor.h"

#include <fmt/format.h>

#include "accumulate.h"
#include "autograd.h"
#include "error.h"
#include "ops_internal.h"

namespace tandem {

void TensorImpl::destroy(TensorImpl* t) { delete t; }

Tensor new_tensor(const Shape& shape, DType dtype, Device device) {
  auto impl = make_ref<TensorImpl>();
  impl->shape = shape;
  impl->strides = contiguous_strides(shape);
  impl->numel = shape.numel();
  impl->dtype = dtype;
  impl->storage = Storage::allocate(device, static_cast<std::size_t>(impl->numel) * size_of(dtype));
  return Tensor(std::move(impl));
}

namespace {

bool contiguous_layout(const Shape& shape, const Shape& strides) {
  std::int64_t step = 1;
  for (int i = shape.size() - 1; i >= 0; --i) {
    if (shape[i] != 1 && strides[i] != step) return false;
    step *= shape[i];
  }
  return true;
}

Ref<TensorImpl> show(const TensorImpl& of, const Shape& shape, const Shape& strides, std::int64_t offset) {
  auto impl = make_ref<TensorImpl>();
  impl->storage = of.storage;
  impl->version = of.version;
  impl->offset = offset;
  impl->shape = shape;
  impl->strides = strides;
  impl->numel = shape.numel();
  impl->dtype = of.dtype;
  impl->contiguous = impl->numel == 0 || contiguous_layout(shape, strides);
  return impl;
}

}  // namespace

Tensor view_of(const Tensor& x, const Shape& shape, const Shape& strides, std::int64_t offset) {
  const TensorImpl& of = *x.impl();
  auto impl = show(of, shape, strides, offset);
  impl->base = of.base ? of.base : x.ref();
  impl->history = impl->base->history;
  impl->multi_view = of.multi_view;
  impl->no_grad_view = of.no_grad_view || !context().grad_enabled;
  return Tensor(std::move(impl));
}

Tensor alias_of(const Tensor& x) { return Tensor(show(*x.impl(), x.sizes(), x.strides(), x.storage_offset())); }

void bump_version(const Tensor& x) {
  TensorImpl& i = *x.impl();
  if (i.version) {
    i.version->bump();
  } else {
    i.storage->bump();
  }
}

std::string describe(const Tensor& t) {
  if (!t.defined()) return "undefined";
  return fmt::format("{} {} on {}", name_of(t.dtype()), str(t.sizes()), str(t.device()));
}

void Tensor::throw_undefined(const char* method) {
  throw ValueError(fmt::format("{}: the tensor is undefined", method));
}

std::int64_t Tensor::size(std::int64_t d) const { return sizes()[wrap_dim("size", d, dim())]; }
std::int64_t Tensor::stride(std::int64_t d) const { return strides()[wrap_dim("stride", d, dim())]; }

void Tensor::check_dtype(DType wanted) const {
  if (dtype() != wanted) {
    throw DTypeError(fmt::format("data: the tensor is {}, not {}", describe(*this), name_of(wanted)));
  }
}

Scalar Tensor::item_scalar() const {
  check_defined("item", "the tensor", *this);
  if (numel() != 1) throw ValueError(fmt::format("item: wanted a tensor of one element, got {}", describe(*this)));
  const Tensor here = to(cpu());
  return visit_dtype(dtype(), [&]<class T>(TypeTag<T>) { return Scalar(*static_cast<const T*>(here.data_ptr())); });
}

template <class T>
std::vector<T> Tensor::to_vector() const {
  const NoGradGuard no_grad;
  const Tensor here = to(cpu()).to(dtype_of<T>()).contiguous();
  const T* p = static_cast<const T*>(here.data_ptr());
  return p ? std::vector<T>(p, p + numel()) : std::vector<T>();
}
template std::vector<double> Tensor::to_vector<double>() const;
template std::vector<float> Tensor::to_vector<float>() const;
template std::vector<std::int64_t> Tensor::to_vector<std::int64_t>() const;
template std::vector<std::int32_t> Tensor::to_vector<std::int32_t>() const;
template std::vector<std::uint8_t> Tensor::to_vector<std::uint8_t>() const;

// ---- autograd

bool Tensor::is_leaf() const { return !requires_grad() || !impl_->meta || impl_->meta->is_leaf; }

Ref<Node> Tensor::grad_fn() const { return is_leaf() ? nullptr : gradient_edge(*this).node; }

Tensor& Tensor::requires_grad_(bool on) {
  check_defined("requires_grad_", "the tensor", *this);
  if (!is_leaf()) {
    if (on) return *this;
    throw AutogradError("requires_grad_: only a leaf can be told that it needs no gradient; use detach()");
  }
  if (on && !is_floating(dtype())) {
    throw DTypeError(fmt::format("requires_grad_: only floating tensors have gradients, got {}", describe(*this)));
  }
  if (on) accumulator_of(*impl_);
  impl_->requires_grad = on;
  return *this;
}

Tensor Tensor::grad() const {
  if (!body("grad").meta) return {};
  if (!impl_->meta->is_leaf) return impl_->meta->retained ? *impl_->meta->retained : Tensor();
  return accumulator_of(*impl_).grad();
}

void Tensor::set_grad(const Tensor& grad) const {
  check_defined("set_grad", "the tensor", *this);
  if (!grad.defined()) {
    if (!impl_->meta) return;
    if (impl_->meta->is_leaf) {
      accumulator_of(*impl_).set_grad({});
    } else if (impl_->meta->retained) {
      *impl_->meta->retained = Tensor();
    }
    return;
  }
  if (!is_leaf()) throw AutogradError("set_grad: only the gradient of a leaf can be set");
  if (grad.sizes() != sizes()) {
    throw ShapeError(fmt::format("set_grad: wanted a gradient like {}, got {}", describe(*this), describe(grad)));
  }
  tandem::check_dtype("set_grad", "the gradient", grad, dtype());
  check_device("set_grad", {this, &grad});
  accumulator_of(*impl_).set_grad(grad);
}

void Tensor::retain_grad() const {
  check_defined("retain_grad", "the tensor", *this);
  if (is_leaf()) return;
  const Edge edge = gradient_edge(*this);
  AutogradMeta& meta = *impl_->meta;
  if (meta.retained) return;
  meta.retained = std::make_shared<Tensor>();
  edge.node->add_hook(edge.index, [slot = meta.retained](const Tensor& g) {
    *slot = slot->defined() ? add(*slot, g) : g;
    return Tensor();
  });
}

HookHandle Tensor::register_hook(TensorHook hook) const {
  const Edge edge = gradient_edge(*this);
  if (!edge) throw AutogradError("register_hook: the tensor needs no gradient: " + describe(*this));
  const std::uint64_t id = edge.node->add_hook(edge.index, std::move(hook));
  return HookHandle([node = edge.node, id] { node->remove_hook(id); });
}

void Tensor::backward(const Tensor& gradient, bool retain_graph, bool create_graph) const {
  tandem::backward({*this}, {gradient}, {retain_graph, create_graph});
}

Tensor Tensor::detach() const {
  check_defined("detach", "the tensor", *this);
  return alias_of(*this);
}

void Tensor::set_data(const Tensor& other) const {
  check_defined("set_data", "the tensor", *this);
  check_defined("set_data", "the new data", other);
  if (!is_leaf() || impl_->base) throw AutogradError("set_data: wanted a leaf that is no view, got " + describe(*this));
  if (requires_grad() && !is_floating(other.dtype())) {
    throw DTypeError("set_data: a tensor that needs a gradient stays floating, got " + describe(other));
  }
  Tensor old_grad = grad();
  const TensorImpl& from = *other.impl();
  impl_->storage = from.storage;
  impl_->version = from.version;
  impl_->offset = from.offset;
  impl_->shape = from.shape;
  impl_->strides = from.strides;
  impl_->numel = from.numel;
  impl_->dtype = from.dtype;
  impl_->contiguous = from.contiguous;
  impl_->exclusive = from.exclusive;
  if (!impl_->meta) return;
  Accumulate& leaf = accumulator_of(*impl_);
  leaf.retarget(*impl_);
  if (old_grad.defined()) {
    const NoGradGuard no_grad;
    leaf.set_grad(old_grad.sizes() == sizes() ? old_grad.to(device()).to(dtype()) : Tensor());
  }
}

}  // namespace tandem
