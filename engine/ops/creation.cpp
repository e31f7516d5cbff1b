// New tensors.

#include <fmt/format.h>

#include <cmath>

#include "../ops_internal.h"

namespace tandem {

Tensor empty(const Shape& shape, DType dtype, Device device) {
  checked_numel("empty", shape, size_of(dtype));
  return new_tensor(shape, dtype, device);
}

Tensor full(const Shape& shape, const Scalar& value, DType dtype, Device device) {
  Tensor t = empty(shape, dtype, device);
  kernels::Stream stream = stream_for(device);
  backend(device).fill(stream, raw(t), value);
  return t;
}

Tensor zeros(const Shape& shape, DType dtype, Device device) { return full(shape, 0, dtype, device); }
Tensor ones(const Shape& shape, DType dtype, Device device) { return full(shape, 1, dtype, device); }
Tensor empty_like(const Tensor& t) { return empty(t.sizes(), t.dtype(), t.device()); }
Tensor zeros_like(const Tensor& t) { return zeros(t.sizes(), t.dtype(), t.device()); }
Tensor ones_like(const Tensor& t) { return ones(t.sizes(), t.dtype(), t.device()); }
Tensor scalar_tensor(const Scalar& value, DType dtype, Device device) { return full({}, value, dtype, device); }

Tensor arange(const Scalar& start, const Scalar& end, const Scalar& step, DType dtype, Device device) {
  const double from = start.to<double>();
  const double to = end.to<double>();
  const double by = step.to<double>();
  if (!(by != 0) || !std::isfinite(from) || !std::isfinite(to) || (to - from) / by < 0) {
    throw ValueError(fmt::format("arange: no way from {} to {} by {}", from, to, by));
  }
  Tensor t = empty({static_cast<std::int64_t>(std::ceil((to - from) / by))}, dtype, device);
  kernels::Stream stream = stream_for(device);
  backend(device).arange(stream, raw(t), start, step);
  return t;
}

Tensor eye(std::int64_t n, DType dtype, Device device) {
  Tensor t = zeros({n, n}, dtype, device);
  const NoGradGuard no_grad;
  view_of(t, {n}, {n + 1}, 0).fill_(1);
  return t;
}

template <class T>
Tensor from_vector(const std::vector<T>& values, const Shape& shape, Device device) {
  const DType dtype = dtype_of<T>();
  const std::int64_t n = checked_numel("from_vector", shape, size_of(dtype));
  if (n != static_cast<std::int64_t>(values.size())) {
    throw ShapeError(fmt::format("from_vector: {} values do not fill shape {}", values.size(), str(shape)));
  }
  Tensor t = new_tensor(shape, dtype, device);
  const auto* bytes = reinterpret_cast<const std::byte*>(values.data());
  copy_bytes(device, static_cast<std::byte*>(t.data_ptr()), cpu(), bytes, t.nbytes());
  return t;
}
template Tensor from_vector<float>(const std::vector<float>&, const Shape&, Device);
template Tensor from_vector<double>(const std::vector<double>&, const Shape&, Device);
template Tensor from_vector<std::int64_t>(const std::vector<std::int64_t>&, const Shape&, Device);
template Tensor from_vector<std::int32_t>(const std::vector<std::int32_t>&, const Shape&, Device);
template Tensor from_vector<std::uint8_t>(const std::vector<std::uint8_t>&, const Shape&, Device);

Tensor tensor(std::initializer_list<double> values, DType dtype, Device device) {
  return to(from_vector(std::vector<double>(values), {static_cast<std::int64_t>(values.size())}, device), dtype);
}

Tensor tensor(std::initializer_list<int> values, DType dtype, Device device) {
  const std::vector<std::int64_t> wide(values.begin(), values.end());
  return to(from_vector(wide, {static_cast<std::int64_t>(values.size())}, device), dtype);
}

namespace {

void check_drawable(const char* op, DType dtype) {
  if (!is_floating(dtype)) throw DTypeError(fmt::format("{}: wanted a floating dtype, got {}", op, name_of(dtype)));
}

}  // namespace

Tensor rand(const Shape& shape, DType dtype, Device device) {
  check_drawable("rand", dtype);
  Tensor t = empty(shape, dtype, device);
  t.uniform_();
  return t;
}

Tensor randn(const Shape& shape, DType dtype, Device device) {
  check_drawable("randn", dtype);
  Tensor t = empty(shape, dtype, device);
  t.normal_();
  return t;
}

Tensor randint(std::int64_t lo, std::int64_t hi, const Shape& shape, DType dtype, Device device) {
  if (lo >= hi) throw ValueError(fmt::format("randint: wanted lo < hi, got {} and {}", lo, hi));
  if (dtype == kBool) throw DTypeError("randint: bool has no range; compare random numbers instead");
  Tensor t = empty(shape, dtype, device);
  kernels::Stream stream = stream_for(device);
  backend(device).randint(stream, raw(t), reserve_random(device, t.numel(), kFloat64), lo, hi);
  return t;
}

namespace {

/// Draws into t through a contiguous temporary where t is not contiguous itself.
template <class Draw>
Tensor& draw(const char* op, Tensor& t, Draw draw_into) {
  check_floating(op, t);
  auto fill = [&](const Tensor& into) {
    kernels::Stream stream = stream_for(into.device());
    draw_into(stream, raw(into), reserve_random(into.device(), into.numel(), into.dtype()));
  };
  auto fresh = [&] {
    Tensor value = empty_like(t);
    fill(value);
    return value;
  };
  return change_inplace(
      op, t, {},
      [&] {
        if (t.is_contiguous()) {
          fill(t);
        } else {
          copy_values(t, fresh());
        }
      },
      [&](const Tensor&) { return fresh(); });
}

}  // namespace

Tensor& Tensor::uniform_(double lo, double hi) {
  if (!(lo <= hi)) throw ValueError(fmt::format("uniform_: wanted lo <= hi, got {} and {}", lo, hi));
  return draw("uniform_", *this, [&](kernels::Stream& s, const kernels::View& out, kernels::PhiloxState r) {
    backend(device()).uniform(s, out, r, lo, hi);
  });
}

Tensor& Tensor::normal_(double mean, double std) {
  if (!(std >= 0)) throw ValueError(fmt::format("normal_: wanted std >= 0, got {}", std));
  return draw("normal_", *this, [&](kernels::Stream& s, const kernels::View& out, kernels::PhiloxState r) {
    backend(device()).normal(s, out, r, mean, std);
  });
}

}  // namespace tandem
