// In-place changes and the tape. A change of a view is a change of its base: the base gets the history "old base, with
// this region overwritten", and every other view of it is then derived anew from the base.

#include <fmt/format.h>

#include <algorithm>

#include "accumulate.h"
#include "ops_internal.h"

namespace tandem {
namespace {

/// A region of a base tensor; `offset` counts from the base's first element.
struct Region {
  Shape shape, strides;
  std::int64_t offset = 0;
};

Region whole(const TensorImpl& base) { return {base.shape, base.strides, 0}; }
Region part(const TensorImpl& base, const TensorImpl& view) {
  return {view.shape, view.strides, view.offset - base.offset};
}

/// Lowest and highest offset that a region reaches.
std::pair<std::int64_t, std::int64_t> span_of(const Region& r) {
  std::int64_t low = r.offset;
  std::int64_t high = r.offset;
  for (int i = 0; i < r.shape.size(); ++i) {
    const std::int64_t far = (r.shape[i] - 1) * r.strides[i];
    (far < 0 ? low : high) += far;
  }
  return {low, high};
}

Tensor region_of(const Tensor& flat, const Region& r, std::int64_t low) {
  const NoGradGuard no_grad;
  return alias_of(view_of(flat, r.shape, r.strides, r.offset - low));
}

void copy_elements(const Tensor& to, const Tensor& from) {
  kernels::Stream stream = stream_for(to.device());
  backend(to.device()).copy(stream, raw(to), raw(from));
}

/// Puts x at `from` into zeroed memory that holds both regions, and returns what then lies at `to`.
Tensor transfer(const Tensor& x, const Region& from, const Region& to) {
  if (x.numel() == 0 || to.shape.numel() == 0) return zeros(to.shape, x.dtype(), x.device());
  // A stretched dimension shows one element many times; what is put there adds up.
  Region target = from;
  Tensor value = x.detach();
  for (int i = 0; i < target.shape.size(); ++i) {
    if (target.strides[i] == 0 && target.shape[i] > 1) {
      value = sum(value, {i}, true);
      target.shape[i] = 1;
    }
  }
  const auto [low_a, high_a] = span_of(target);
  const auto [low_b, high_b] = span_of(to);
  const std::int64_t low = std::min(low_a, low_b);
  const Tensor flat = zeros({std::max(high_a, high_b) - low + 1}, x.dtype(), x.device());
  copy_elements(region_of(flat, target, low), value);
  return contiguous(region_of(flat, to, low));
}

/// transfer() is linear, and its transpose is the transfer the other way.
Tensor recorded_transfer(const Tensor& x, const Region& from, const Region& to) {
  Tensor out = transfer(x, from, to);
  if (needs_grad(x)) {
    record("transfer", out, {x}, [from, to](GradContext& c) { c.set(0, recorded_transfer(c.grad(), to, from)); });
  }
  return out;
}

void set_edge(TensorImpl& t, Edge edge) {
  if (!t.meta) t.meta = std::make_unique<AutogradMeta>();
  t.meta->edge = std::move(edge);
  t.meta->is_leaf = false;
  t.meta->retained.reset();
  t.requires_grad = true;
}

/// Derives a view from its base, whose history was rewritten since.
void refresh_view(const Tensor& view) {
  TensorImpl& t = *view.impl();
  const Tensor base(t.base);
  t.history = t.base->history;
  const Region from = whole(*t.base);
  const Region to = part(*t.base, t);
  auto node = [&] {
    auto f = [from, to](GradContext& c) { c.set(0, recorded_transfer(c.grad(), to, from)); };
    return Ref<Node>(new FunctionNode<decltype(f)>("as_view", f));
  }();
  node->add_input(base);
  node->add_output_meta({t.shape, t.dtype, view.device()});
  set_edge(t, {node, 0});
}

bool overlaps_itself(const Tensor& t) {
  for (int i = 0; i < t.dim(); ++i) {
    if (t.sizes()[i] > 1 && t.strides()[i] == 0) return true;
  }
  return false;
}

}  // namespace

bool Tensor::requires_grad() const {
  if (!impl_) return false;
  if (impl_->base && impl_->history != impl_->base->history) refresh_view(*this);
  return impl_->requires_grad;
}

Edge gradient_edge(const Tensor& t) {
  if (!t.defined() || !t.requires_grad()) return {};
  TensorImpl& i = *t.impl();
  if (!i.meta) accumulator_of(i);
  return i.meta->edge;
}

bool check_inplace(const char* op, const Tensor& self, std::initializer_list<const Tensor*> others) {
  check_defined(op, "the tensor", self);
  if (self.numel() > 0 && overlaps_itself(self)) {
    throw ValueError(
        fmt::format("{}: several elements of {} with strides {} lie in the same memory: overlapping memory "
                    "cannot be changed in place; clone() it first",
                    op, describe(self), str(self.strides())));
  }
  if (!context().grad_enabled) return false;
  const TensorImpl& i = *self.impl();
  const bool own = self.requires_grad();
  if (own && self.is_leaf()) {
    throw AutogradError(
        fmt::format("{}: a leaf that requires a gradient cannot be changed in place while the tape records; "
                    "use NoGradGuard: {}",
                    op, describe(self)));
  }
  bool tracked = own;
  for (const Tensor* other : others) tracked = tracked || (other->defined() && other->requires_grad());
  if (i.base) {
    const Tensor base(i.base);
    if (base.requires_grad() && base.is_leaf()) {
      throw AutogradError(
          fmt::format("{}: a view of a leaf that requires a gradient cannot be changed in place while the tape "
                      "records; use NoGradGuard: {}",
                      op, describe(self)));
    }
    tracked = tracked || base.requires_grad();
  }
  if (tracked && i.multi_view) {
    throw AutogradError(
        fmt::format("{}: a piece made by split, chunk, unbind, scatter or broadcast, or a view of one, cannot "
                    "be changed in place while the tape records; clone() it first: {}",
                    op, describe(self)));
  }
  if (tracked && i.no_grad_view) {
    throw AutogradError(fmt::format(
        "{}: a view made under NoGradGuard cannot be changed in place while the tape records: {}", op, describe(self)));
  }
  return tracked;
}

void rebase_history(const Tensor& self, const Tensor& value) {
  TensorImpl& t = *self.impl();
  const Edge edge = gradient_edge(value);
  if (!t.base) {
    if (edge) {
      set_edge(t, edge);
    } else {
      t.meta.reset();
      t.requires_grad = false;
    }
    ++t.history;
    return;
  }
  TensorImpl& base = *t.base;
  const Region all = whole(base);
  const Region region = part(base, t);
  auto overwrite = [all, region](GradContext& c) {
    const Tensor inside = recorded_transfer(c.grad(), all, region);
    if (c.needs(0)) c.set(0, sub(c.grad(), recorded_transfer(inside, region, all)));
    if (c.needs(1)) c.set(1, inside);
  };
  auto node = Ref<Node>(new FunctionNode<decltype(overwrite)>("overwrite", overwrite));
  node->add_input(Tensor(t.base));
  node->add_input(value);
  node->add_output_meta({base.shape, base.dtype, base.storage->device()});
  set_edge(base, {node, 0});
  ++base.history;
  // The view itself is derived from the base like its siblings, when somebody asks.
}

}  // namespace tandem
