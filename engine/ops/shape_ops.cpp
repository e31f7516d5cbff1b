// Views: other shapes, orders and parts of the same elements.

#include <fmt/format.h>

#include "../op_record.h"
#include "../ops_internal.h"

namespace tandem {
namespace {

template <class F>
Tensor recorded_view(const char* name, const Tensor& x, const Shape& shape, const Shape& strides, std::int64_t offset,
                     F backward) {
  Tensor out = view_of(x, shape, strides, offset);
  if (needs_grad(x)) record(name, out, {x}, std::move(backward));
  return out;
}

/// `shape` with -1 replaced by what is left of n elements.
Shape inferred(const char* op, const Tensor& x, const Shape& shape) {
  int unknown = -1;
  std::int64_t known = 1;
  for (int i = 0; i < shape.size(); ++i) {
    if (shape[i] == -1) {
      if (unknown >= 0) throw ShapeError(fmt::format("{}: only one size can be -1, got {}", op, str(shape)));
      unknown = i;
    } else if (shape[i] < 0) {
      throw ShapeError(fmt::format("{}: sizes must not be negative, got {}", op, str(shape)));
    } else if (__builtin_mul_overflow(known, shape[i], &known)) {
      throw ShapeError(fmt::format("{}: {} has too many elements for {}", op, str(shape), str(x.sizes())));
    }
  }
  Shape out = shape;
  if (unknown >= 0) {
    if (known == 0) {
      throw ShapeError(
          fmt::format("{}: -1 in {} could be any size, since the other sizes make 0 elements", op, str(shape)));
    }
    out[unknown] = x.numel() / known;
    known *= out[unknown];
  }
  if (known != x.numel()) {
    throw ShapeError(
        fmt::format("{}: {} has {} elements, which do not make {}", op, str(x.sizes()), x.numel(), str(shape)));
  }
  return out;
}

/// Strides that show x's elements as `shape`, if there are any.
std::optional<Shape> view_strides(const Tensor& x, const Shape& shape) {
  if (x.is_contiguous() || x.numel() == 0) return contiguous_strides(shape);
  // Walk both shapes from the right; each run of x's dimensions that is contiguous in itself may be cut anew.
  Shape strides = shape;
  int to = shape.size() - 1;
  std::int64_t run_elements = 1;
  std::int64_t run_stride = x.strides().back();
  for (int from = x.dim() - 1; from >= 0; --from) {
    run_elements *= x.sizes()[from];
    const bool run_ends = from == 0 || (x.sizes()[from - 1] != 1 && x.strides()[from - 1] != run_elements * run_stride);
    if (!run_ends) continue;
    std::int64_t cut = 1;
    while (to >= 0 && (cut < run_elements || shape[to] == 1)) {
      strides[to] = cut * run_stride;
      cut *= shape[to--];
    }
    if (cut != run_elements) return std::nullopt;
    if (from > 0) {
      run_elements = 1;
      run_stride = x.strides()[from - 1];
    }
  }
  return strides;
}

Tensor reshaped(const char* op, const Tensor& x, const Shape& shape, const Shape& strides) {
  return recorded_view(op, x, shape, strides, x.storage_offset(),
                       [](GradContext& c) { c.set(0, reshape(c.grad(), c.input_shape(0))); });
}

}  // namespace

Tensor reshape(const Tensor& x, const Shape& shape) {
  check_defined("reshape", "the tensor", x);
  const Shape to = inferred("reshape", x, shape);
  if (to == x.sizes()) return x;
  if (const auto strides = view_strides(x, to)) return reshaped("reshape", x, to, *strides);
  return reshaped("reshape", contiguous(x), to, contiguous_strides(to));
}

Tensor view(const Tensor& x, const Shape& shape) {
  check_defined("view", "the tensor", x);
  const Shape to = inferred("view", x, shape);
  const auto strides = view_strides(x, to);
  if (!strides) {
    throw ShapeError(fmt::format("view: {} with strides {} cannot be shown as {} without a copy; use reshape",
                                 str(x.sizes()), str(x.strides()), str(to)));
  }
  return reshaped("view", x, to, *strides);
}

Tensor flatten(const Tensor& x, std::int64_t start_dim, std::int64_t end_dim) {
  check_defined("flatten", "the tensor", x);
  if (x.dim() == 0) return reshape(x, {1});
  const int first = wrap_dim("flatten", start_dim, x.dim());
  const int last = wrap_dim("flatten", end_dim, x.dim());
  if (first > last) throw ValueError(fmt::format("flatten: dimension {} comes after {}", first, last));
  Shape shape;
  for (int i = 0; i < x.dim(); ++i) {
    if (i > first && i <= last) {
      shape[first] *= x.sizes()[i];
    } else {
      shape.push_back(x.sizes()[i]);
    }
  }
  return reshape(x, shape);
}

Tensor permute(const Tensor& x, const Shape& dims) {
  check_defined("permute", "the tensor", x);
  if (dims.size() != x.dim()) {
    throw ShapeError(fmt::format("permute: wanted {} dimensions for {}, got {}", x.dim(), str(x.sizes()), str(dims)));
  }
  Shape shape = x.sizes();
  Shape strides = x.strides();
  Shape inverse = dims;
  std::array<bool, kMaxDims> used{};
  for (int i = 0; i < dims.size(); ++i) {
    const int d = wrap_dim("permute", dims[i], x.dim());
    if (used[static_cast<std::size_t>(d)])
      throw IndexError(fmt::format("permute: dimension {} is named twice in {}", d, str(dims)));
    used[static_cast<std::size_t>(d)] = true;
    shape[i] = x.sizes()[d];
    strides[i] = x.strides()[d];
    inverse[d] = i;
  }
  return recorded_view("permute", x, shape, strides, x.storage_offset(),
                       [inverse](GradContext& c) { c.set(0, permute(c.grad(), inverse)); });
}

Tensor transpose(const Tensor& x, std::int64_t dim0, std::int64_t dim1) {
  check_defined("transpose", "the tensor", x);
  const int a = wrap_dim("transpose", dim0, x.dim());
  const int b = wrap_dim("transpose", dim1, x.dim());
  Shape shape = x.sizes();
  Shape strides = x.strides();
  std::swap(shape[a], shape[b]);
  std::swap(strides[a], strides[b]);
  return recorded_view("transpose", x, shape, strides, x.storage_offset(),
                       [a, b](GradContext& c) { c.set(0, transpose(c.grad(), a, b)); });
}

Tensor squeeze(const Tensor& x) {
  check_defined("squeeze", "the tensor", x);
  Shape shape;
  Shape strides;
  for (int i = 0; i < x.dim(); ++i) {
    if (x.sizes()[i] == 1) continue;
    shape.push_back(x.sizes()[i]);
    strides.push_back(x.strides()[i]);
  }
  return reshaped("squeeze", x, shape, strides);
}

Tensor squeeze(const Tensor& x, std::int64_t dim) {
  check_defined("squeeze", "the tensor", x);
  const int d = wrap_dim("squeeze", dim, x.dim());
  Shape shape = x.sizes();
  Shape strides = x.strides();
  if (x.dim() > 0 && shape[d] == 1) {
    shape.erase(d);
    strides.erase(d);
  }
  return reshaped("squeeze", x, shape, strides);
}

Tensor unsqueeze(const Tensor& x, std::int64_t dim) {
  check_defined("unsqueeze", "the tensor", x);
  const int d = wrap_dim("unsqueeze", dim, x.dim() + 1);
  Shape shape = x.sizes();
  Shape strides = x.strides();
  const std::int64_t step = d < x.dim() ? shape[d] * strides[d] : 1;
  shape.insert(d, 1);
  strides.insert(d, step);
  return reshaped("unsqueeze", x, shape, strides);
}

Tensor expand(const Tensor& x, const Shape& shape) {
  check_defined("expand", "the tensor", x);
  const int extra = shape.size() - x.dim();
  Shape to = shape;
  Shape strides = shape;
  for (int i = 0; i < shape.size(); ++i) {
    const std::int64_t size = i < extra ? 1 : x.sizes()[i - extra];
    if (to[i] == -1 && i >= extra) to[i] = size;
    if (extra < 0 || to[i] < 0 || (size != 1 && size != to[i])) {
      throw ShapeError(fmt::format("expand: {} cannot be stretched to {}", str(x.sizes()), str(shape)));
    }
    strides[i] = size == to[i] && i >= extra ? x.strides()[i - extra] : 0;
  }
  if (extra < 0) throw ShapeError(fmt::format("expand: {} cannot be stretched to {}", str(x.sizes()), str(shape)));
  return recorded_view("expand", x, to, strides, x.storage_offset(),
                       [](GradContext& c) { c.set(0, reduce_to(c.grad(), c.input_shape(0))); });
}

// ---- parts

namespace {

/// Which indices of a dimension: start, start + step, ... , `length` of them.
struct Range {
  int dim;
  std::int64_t start, step, length;
};

Tensor take_range(const char* name, const Tensor& x, const Range& r);

/// The transpose of take_range: zeros of `shape` with x at the range.
Tensor put_range(const Tensor& x, const Shape& shape, const Range& r) {
  Tensor out = zeros(shape, x.dtype(), x.device());
  {
    const NoGradGuard no_grad;
    const Tensor place = take_range("put_range", out, r);
    kernels::Stream stream = stream_for(x.device());
    backend(x.device()).copy(stream, raw(place), raw(x));
  }
  if (needs_grad(x)) {
    record("put_range", out, {x}, [r](GradContext& c) { c.set(0, take_range("take_range", c.grad(), r)); });
  }
  return out;
}

Tensor take_range(const char* name, const Tensor& x, const Range& r) {
  Shape shape = x.sizes();
  Shape strides = x.strides();
  const std::int64_t offset = x.storage_offset() + (r.length > 0 ? r.start * strides[r.dim] : 0);
  shape[r.dim] = r.length;
  strides[r.dim] *= r.step;
  return recorded_view(name, x, shape, strides, offset,
                       [r](GradContext& c) { c.set(0, put_range(c.grad(), c.input_shape(0), r)); });
}

int sliced_dim(const char* op, const Tensor& x, std::int64_t dim) {
  check_defined(op, "the tensor", x);
  if (x.dim() == 0) throw ShapeError(fmt::format("{}: a 0-dim tensor has no parts", op));
  return wrap_dim(op, dim, x.dim());
}

void mark_pieces(std::vector<Tensor>& pieces) {
  for (Tensor& t : pieces) t.impl()->multi_view = true;
}

}  // namespace

Tensor narrow(const Tensor& x, std::int64_t dim, std::int64_t start, std::int64_t length) {
  const int d = sliced_dim("narrow", x, dim);
  const std::int64_t n = x.sizes()[d];
  const std::int64_t from = start < 0 ? start + n : start;
  if (from < 0 || length < 0 || length > n - from) {
    throw IndexError(
        fmt::format("narrow: {} elements from {} are not in dimension {} of {}", length, start, d, str(x.sizes())));
  }
  return take_range("narrow", x, {d, from, 1, length});
}

Tensor slice(const Tensor& x, std::int64_t dim, std::optional<std::int64_t> start, std::optional<std::int64_t> end,
             std::int64_t step) {
  const int d = sliced_dim("slice", x, dim);
  if (step == 0) throw ValueError("slice: the step must not be 0");
  const std::int64_t n = x.sizes()[d];
  // As Python: out-of-range bounds are clipped, to [0, n] going up and to [-1, n - 1] going down.
  const std::int64_t low = step > 0 ? 0 : -1;
  const std::int64_t high = step > 0 ? n : n - 1;
  const auto clip = [&](std::int64_t i) { return std::clamp(i < 0 ? i + n : i, low, std::max(low, high)); };
  const std::int64_t from = start ? clip(*start) : (step > 0 ? low : high);
  const std::int64_t to = end ? clip(*end) : (step > 0 ? high : low);
  const std::int64_t distance = step > 0 ? to - from : from - to;
  const std::int64_t stride = step > 0 ? step : -step;
  const std::int64_t length = distance > 0 ? (distance - 1) / stride + 1 : 0;
  return take_range("slice", x, {d, from, step, length});
}

Tensor select(const Tensor& x, std::int64_t dim, std::int64_t index) {
  const int d = sliced_dim("select", x, dim);
  const std::int64_t n = x.sizes()[d];
  if (index < -n || index >= n) {
    throw IndexError(fmt::format("select: index {} is out of range for dimension {} of {}", index, d, str(x.sizes())));
  }
  const std::int64_t i = index < 0 ? index + n : index;
  Shape shape = x.sizes();
  Shape strides = x.strides();
  const std::int64_t offset = x.storage_offset() + i * strides[d];
  shape.erase(d);
  strides.erase(d);
  return recorded_view("select", x, shape, strides, offset, [from = x.sizes(), d, i](GradContext& c) {
    c.set(0, put_range(unsqueeze(c.grad(), d), from, {d, i, 1, 1}));
  });
}

std::vector<Tensor> split(const Tensor& x, const std::vector<std::int64_t>& sizes, std::int64_t dim) {
  const int d = sliced_dim("split", x, dim);
  std::int64_t total = 0;
  for (std::int64_t s : sizes) {
    if (s < 0) throw ValueError(fmt::format("split: sizes must not be negative, got {}", s));
    total += s;
  }
  if (total != x.sizes()[d]) {
    throw ValueError(fmt::format("split: the sizes add up to {}, but dimension {} of {} has {}", total, d,
                                 str(x.sizes()), x.sizes()[d]));
  }
  std::vector<Tensor> pieces;
  std::int64_t start = 0;
  for (std::int64_t s : sizes) {
    pieces.push_back(take_range("split", x, {d, start, 1, s}));
    start += s;
  }
  mark_pieces(pieces);
  return pieces;
}

std::vector<Tensor> split(const Tensor& x, std::int64_t size, std::int64_t dim) {
  const int d = sliced_dim("split", x, dim);
  if (size < 1) throw ValueError(fmt::format("split: the size must be at least 1, got {}", size));
  std::vector<std::int64_t> sizes;
  for (std::int64_t left = x.sizes()[d]; left > 0 || sizes.empty(); left -= size) sizes.push_back(std::min(left, size));
  return split(x, sizes, d);
}

std::vector<Tensor> chunk(const Tensor& x, std::int64_t chunks, std::int64_t dim) {
  const int d = sliced_dim("chunk", x, dim);
  if (chunks < 1) throw ValueError(fmt::format("chunk: wanted at least 1 chunk, got {}", chunks));
  const std::int64_t n = x.sizes()[d];
  if (n == 0) return split(x, std::vector<std::int64_t>(static_cast<std::size_t>(chunks), 0), d);
  return split(x, (n + chunks - 1) / chunks, d);
}

std::vector<Tensor> unbind(const Tensor& x, std::int64_t dim) {
  const int d = sliced_dim("unbind", x, dim);
  std::vector<Tensor> pieces;
  for (std::int64_t i = 0; i < x.sizes()[d]; ++i) pieces.push_back(select(x, d, i));
  mark_pieces(pieces);
  return pieces;
}

Tensor Tensor::reshape(const Shape& shape) const { return tandem::reshape(*this, shape); }
Tensor Tensor::view(const Shape& shape) const { return tandem::view(*this, shape); }
Tensor Tensor::flatten(std::int64_t a, std::int64_t b) const { return tandem::flatten(*this, a, b); }
Tensor Tensor::permute(const Shape& dims) const { return tandem::permute(*this, dims); }
Tensor Tensor::transpose(std::int64_t a, std::int64_t b) const { return tandem::transpose(*this, a, b); }
Tensor Tensor::t() const {
  check_dim("t", "the tensor", *this, 2);
  return tandem::transpose(*this, 0, 1);
}
Tensor Tensor::squeeze() const { return tandem::squeeze(*this); }
Tensor Tensor::squeeze(std::int64_t d) const { return tandem::squeeze(*this, d); }
Tensor Tensor::unsqueeze(std::int64_t d) const { return tandem::unsqueeze(*this, d); }
Tensor Tensor::expand(const Shape& shape) const { return tandem::expand(*this, shape); }
Tensor Tensor::narrow(std::int64_t d, std::int64_t start, std::int64_t n) const {
  return tandem::narrow(*this, d, start, n);
}
Tensor Tensor::select(std::int64_t d, std::int64_t i) const { return tandem::select(*this, d, i); }
Tensor Tensor::slice(std::int64_t d, std::optional<std::int64_t> a, std::optional<std::int64_t> b,
                     std::int64_t step) const {
  return tandem::slice(*this, d, a, b, step);
}
std::vector<Tensor> Tensor::split(std::int64_t size, std::int64_t d) const { return tandem::split(*this, size, d); }
std::vector<Tensor> Tensor::chunk(std::int64_t n, std::int64_t d) const { return tandem::chunk(*this, n, d); }

// ---- records

namespace {

template <class F>
std::vector<OpSample> view_samples(std::initializer_list<std::pair<const char*, Tensor>> cases, F call) {
  std::vector<OpSample> all;
  std::size_t i = 0;
  for (const auto& [python, x] : cases) {
    all.push_back(make_sample(python, {x}, [call, i](const Inputs& in) { return call(in[0], i); }));
    ++i;
  }
  return all;
}

}  // namespace

std::vector<OpRecord> view_records() {
  return {
      {"reshape", "the same elements in another shape",
       [] {
         return view_samples({{"x0.reshape(4, 3)", sample({2, 6})},
                              {"x0.t().reshape(12)", sample({2, 6})},
                              {"x0.reshape(-1, 3)", sample({0, 3})}},
                             [](const Tensor& x, std::size_t i) {
                               if (i == 0) return reshape(x, {4, 3});
                               return i == 1 ? reshape(x.t(), {12}) : reshape(x, {-1, 3});
                             });
       }},
      {"view", "the same, never a copy",
       [] {
         return view_samples({{"x0.clone().view(4, 3)", sample({2, 6})}, {"x0.clone().view(3, 0)", sample({0, 3})}},
                             [](const Tensor& x, std::size_t i) {
                               return i == 0 ? view(clone(x), {4, 3}) : view(clone(x), {3, 0});
                             });
       }},
      {"flatten", "dimensions run together",
       [] {
         return view_samples({{"x0.flatten(1)", sample({2, 3, 2})},
                              {"x0.flatten()", sample({})},
                              {"x0.flatten(0, 1)", sample({0, 3, 2})}},
                             [](const Tensor& x, std::size_t i) {
                               return i == 0 ? flatten(x, 1) : i == 1 ? flatten(x) : flatten(x, 0, 1);
                             });
       }},
      {"permute", "dimensions in another order",
       [] {
         return view_samples({{"x0.permute(2, 0, 1)", sample({2, 3, 2})}, {"x0.permute(2, 0, 1)", sample({2, 0, 3})}},
                             [](const Tensor& x, std::size_t) {
                               return permute(x, {2, 0, -2});
                             });
       }},
      {"transpose", "two dimensions swapped",
       [] {
         return view_samples({{"x0.transpose(0, 2)", sample({2, 3, 2})}, {"x0.transpose(0, 2)", sample({2, 0, 3})}},
                             [](const Tensor& x, std::size_t) { return transpose(x, 0, -1); });
       }},
      {"squeeze", "without dimensions of size 1",
       [] {
         return view_samples({{"x0.squeeze()", sample({1, 3, 1})},
                              {"x0.squeeze(2)", sample({1, 3, 1})},
                              {"x0.squeeze()", sample({0, 1})}},
                             [](const Tensor& x, std::size_t i) { return i == 1 ? squeeze(x, 2) : squeeze(x); });
       }},
      {"unsqueeze", "a dimension of size 1 more",
       [] {
         return view_samples({{"x0.unsqueeze(1)", sample({2, 3})}, {"x0.unsqueeze(-1)", sample({0, 3})}},
                             [](const Tensor& x, std::size_t i) { return unsqueeze(x, i == 0 ? 1 : -1); });
       }},
      {"expand", "dimensions of size 1 stretched",
       [] {
         return view_samples({{"x0.expand(2, 3, 4)", sample({3, 1})}, {"x0.expand(-1, 4)", sample({0, 1})}},
                             [](const Tensor& x, std::size_t i) {
                               return i == 0 ? expand(x, {2, 3, 4}) : expand(x, {-1, 4});
                             });
       }},
      {"narrow", "a range of a dimension",
       [] {
         return view_samples(
             {{"x0.narrow(1, 1, 2)", sample({2, 4})}, {"x0.narrow(0, 1, 0)", sample({3, 2})}},
             [](const Tensor& x, std::size_t i) { return i == 0 ? narrow(x, 1, 1, 2) : narrow(x, 0, 1, 0); });
       }},
      {"slice", "a range of a dimension, with a step",
       [] {
         return view_samples({{"x0[:, 1:6:2]", sample({2, 7})},
                              {"x0[-3:]", sample({5})},
                              {"x0.flip(0)[::2]", sample({5, 2})},
                              {"x0[4:2]", sample({5})}},
                             [](const Tensor& x, std::size_t i) {
                               if (i == 0) return slice(x, 1, 1, 6, 2);
                               if (i == 1) return slice(x, 0, -3, {});
                               return i == 2 ? slice(x, 0, {}, {}, -2) : slice(x, 0, 4, 2);
                             });
       }},
      {"select", "one index of a dimension",
       [] {
         return view_samples(
             {{"x0.select(1, 2)", sample({2, 4})}, {"x0[-1]", sample({3})}, {"x0.select(1, 2)", sample({0, 4})}},
             [](const Tensor& x, std::size_t i) { return i == 1 ? x[-1] : select(x, 1, 2); });
       }},
      {"split", "pieces of a dimension",
       [] {
         return view_samples({{"x0.split(2)", sample({5, 2})},
                              {"x0.split([1, 3], 1)", sample({2, 4})},
                              {"x0.split(2)", sample({0, 2})}},
                             [](const Tensor& x, std::size_t i) {
                               return i == 1 ? split(x, std::vector<std::int64_t>{1, 3}, 1) : split(x, 2);
                             });
       }},
      {"chunk", "a number of pieces",
       [] {
         return view_samples({{"x0.chunk(3)", sample({7, 2})}, {"x0.chunk(2, 1)", sample({0, 3})}},
                             [](const Tensor& x, std::size_t i) { return i == 0 ? chunk(x, 3) : chunk(x, 2, 1); });
       }},
      {"unbind", "every index of a dimension",
       [] {
         return view_samples({{"x0.unbind(1)", sample({2, 3})}, {"x0.unbind(1)", sample({0, 3})}},
                             [](const Tensor& x, std::size_t) { return unbind(x, 1); });
       }},
  };
}

}  // namespace tandem
