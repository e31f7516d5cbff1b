// Convolution and pooling. A convolution y(x, w) has two sisters: its gradients with respect to x and to w. Each of the
// three is linear in both of its operands, and the derivatives of each are the other two; so the three functions below
// can be differentiated any number of times.

#include <fmt/format.h>

#include "../op_record.h"
#include "../ops_internal.h"

namespace tandem {
namespace {

struct ConvShapes {
  Shape x, w, y;
};

kernels::Conv2dArgs args_of(const Conv2dOptions& o) {
  return {{o.stride[0], o.stride[1]}, {o.padding[0], o.padding[1]}, {o.dilation[0], o.dilation[1]}, o.groups};
}

Tensor workspace(kernels::Stream& stream, const Tensor& x, const Tensor& w, const Tensor& y,
                 const kernels::Conv2dArgs& a) {
  return new_tensor({backend(x.device()).conv2d_workspace(stream, raw(x), raw(w), raw(y), a)}, kUInt8, x.device());
}

Tensor conv_input(const Tensor& gy, const Tensor& w, const ConvShapes& s, const Conv2dOptions& o);
Tensor conv_weight(const Tensor& gy, const Tensor& x, const ConvShapes& s, const Conv2dOptions& o);

/// y.
Tensor conv_output(const Tensor& x, const Tensor& w, const Tensor& bias, const ConvShapes& s, const Conv2dOptions& o) {
  Tensor y = new_tensor(s.y, x.dtype(), x.device());
  const Tensor in = contiguous(x.detach());
  const Tensor weight = contiguous(w.detach());
  const kernels::Conv2dArgs a = args_of(o);
  kernels::Stream stream = stream_for(x.device());
  const Tensor work = workspace(stream, in, weight, y, a);
  const Tensor flat_bias = bias.defined() ? contiguous(bias.detach()) : Tensor();
  backend(x.device()).conv2d(stream, raw(y), raw(in), raw(weight), raw_or_null(flat_bias), a, work.data_ptr());
  if (needs_grad(x, w, bias)) {
    record("conv2d", y, {x, w, bias},
           [x = saved_if(w.requires_grad(), x), w = saved_if(x.requires_grad(), w), s, o](GradContext& c) {
             if (c.needs(0)) c.set(0, conv_input(c.grad(), w.get(c), s, o));
             if (c.needs(1)) c.set(1, conv_weight(c.grad(), x.get(c), s, o));
             if (c.needs(2)) c.set(2, sum(c.grad(), {0, 2, 3}));
           });
  }
  return y;
}

/// The gradient of x.
Tensor conv_input(const Tensor& gy, const Tensor& w, const ConvShapes& s, const Conv2dOptions& o) {
  Tensor gx = new_tensor(s.x, gy.dtype(), gy.device());
  const Tensor g = contiguous(gy.detach());
  const Tensor weight = contiguous(w.detach());
  const kernels::Conv2dArgs a = args_of(o);
  kernels::Stream stream = stream_for(gy.device());
  const Tensor work = workspace(stream, gx, weight, g, a);
  backend(gy.device()).conv2d_input(stream, raw(gx), raw(g), raw(weight), a, work.data_ptr());
  if (needs_grad(gy, w)) {
    record("conv2d_input", gx, {gy, w}, [gy = saved(gy), w = saved(w), s, o](GradContext& c) {
      if (c.needs(0)) c.set(0, conv_output(c.grad(), w.get(c), {}, s, o));
      if (c.needs(1)) c.set(1, conv_weight(gy.get(c), c.grad(), s, o));
    });
  }
  return gx;
}

/// The gradient of w.
Tensor conv_weight(const Tensor& gy, const Tensor& x, const ConvShapes& s, const Conv2dOptions& o) {
  Tensor gw = new_tensor(s.w, gy.dtype(), gy.device());
  const Tensor g = contiguous(gy.detach());
  const Tensor in = contiguous(x.detach());
  const kernels::Conv2dArgs a = args_of(o);
  kernels::Stream stream = stream_for(gy.device());
  const Tensor work = workspace(stream, in, gw, g, a);
  backend(gy.device()).conv2d_weight(stream, raw(gw), raw(g), raw(in), a, work.data_ptr());
  if (needs_grad(gy, x)) {
    record("conv2d_weight", gw, {gy, x}, [gy = saved(gy), x = saved(x), s, o](GradContext& c) {
      if (c.needs(0)) c.set(0, conv_output(x.get(c), c.grad(), {}, s, o));
      if (c.needs(1)) c.set(1, conv_input(gy.get(c), c.grad(), s, o));
    });
  }
  return gw;
}

void check_at_least(const char* op, const char* what, const Pair& v, std::int64_t least) {
  for (std::int64_t x : v) {
    if (x < least)
      throw ValueError(fmt::format("{}: {} must be at least {}, got ({}, {})", op, what, least, v[0], v[1]));
  }
}

std::int64_t out_size(const char* op, std::int64_t in, std::int64_t kernel, std::int64_t stride, std::int64_t padding,
                      std::int64_t dilation) {
  const std::int64_t room = in + 2 * padding - dilation * (kernel - 1) - 1;
  if (room < 0) {
    throw ValueError(fmt::format("{}: a kernel that spans {} does not fit an input of {} with padding {}", op,
                                 dilation * (kernel - 1) + 1, in, padding));
  }
  return room / stride + 1;
}

}  // namespace

Tensor conv2d(const Tensor& x, const Tensor& weight, const Tensor& bias, const Conv2dOptions& o) {
  const char* op = "conv2d";
  check_floating(op, x);
  check_dim(op, "the input", x, 4);
  check_dim(op, "the weight", weight, 4);
  check_device(op, {&x, &weight, &bias});
  check_dtype(op, "the weight", weight, x.dtype());
  check_at_least(op, "the stride", o.stride, 1);
  check_at_least(op, "the padding", o.padding, 0);
  check_at_least(op, "the dilation", o.dilation, 1);
  check_at_least(op, "the kernel", {weight.size(2), weight.size(3)}, 1);
  if (o.groups < 1 || x.size(1) % o.groups != 0 || weight.size(0) % o.groups != 0) {
    throw ValueError(fmt::format("conv2d: {} groups do not divide {} input and {} output channels", o.groups, x.size(1),
                                 weight.size(0)));
  }
  if (weight.size(1) != x.size(1) / o.groups) {
    throw ShapeError(fmt::format("conv2d: an input {} in {} groups wants a weight with {} channels, got {}",
                                 str(x.sizes()), o.groups, x.size(1) / o.groups, str(weight.sizes())));
  }
  if (bias.defined()) {
    check_dtype(op, "the bias", bias, x.dtype());
    if (bias.sizes() != Shape{weight.size(0)}) {
      throw ShapeError(fmt::format("conv2d: wanted a bias ({}), got {}", weight.size(0), str(bias.sizes())));
    }
  }
  const Shape y = {x.size(0), weight.size(0),
                   out_size(op, x.size(2), weight.size(2), o.stride[0], o.padding[0], o.dilation[0]),
                   out_size(op, x.size(3), weight.size(3), o.stride[1], o.padding[1], o.dilation[1])};
  return conv_output(x, weight, bias, {x.sizes(), weight.sizes(), y}, o);
}

// ---- pooling

namespace {

struct Pooling {
  kernels::Pool2dArgs args;
  Shape out;
};

Pooling pooling(const char* op, const Tensor& x, Pair kernel, Pair stride, Pair padding) {
  check_floating(op, x);
  check_dim(op, "the input", x, 4);
  if (stride == Pair{0, 0}) stride = kernel;
  check_at_least(op, "the kernel", kernel, 1);
  check_at_least(op, "the stride", stride, 1);
  check_at_least(op, "the padding", padding, 0);
  for (std::size_t i = 0; i < 2; ++i) {
    if (padding[i] > kernel[i] / 2) {
      throw ValueError(fmt::format("{}: the padding ({}, {}) is more than half of the kernel ({}, {})", op, padding[0],
                                   padding[1], kernel[0], kernel[1]));
    }
  }
  return {{{kernel[0], kernel[1]}, {stride[0], stride[1]}, {padding[0], padding[1]}},
          {x.size(0), x.size(1), out_size(op, x.size(2), kernel[0], stride[0], padding[0], 1),
           out_size(op, x.size(3), kernel[1], stride[1], padding[1], 1)}};
}

Tensor max_pool_take(const Tensor& x, const Tensor& index);

/// gy spread to where the maxima came from.
Tensor max_pool_spread(const Tensor& gy, const Tensor& index, const Shape& x_shape) {
  Tensor gx = new_tensor(x_shape, gy.dtype(), gy.device());
  kernels::Stream stream = stream_for(gy.device());
  backend(gy.device()).max_pool2d_backward(stream, raw(gx), raw(contiguous(gy.detach())), raw(index));
  if (needs_grad(gy)) {
    record("max_pool2d_spread", gx, {gy},
           [index = saved(index)](GradContext& c) { c.set(0, max_pool_take(c.grad(), index.get(c))); });
  }
  return gx;
}

/// The elements of x at the maxima's places: the transpose of max_pool_spread.
Tensor max_pool_take(const Tensor& x, const Tensor& index) {
  Tensor y = new_tensor(index.sizes(), x.dtype(), x.device());
  kernels::Stream stream = stream_for(x.device());
  backend(x.device()).max_pool2d_take(stream, raw(y), raw(contiguous(x.detach())), raw(index));
  if (needs_grad(x)) {
    record("max_pool2d_take", y, {x}, [index = saved(index), from = x.sizes()](GradContext& c) {
      c.set(0, max_pool_spread(c.grad(), index.get(c), from));
    });
  }
  return y;
}

Tensor avg_pool_spread(const Tensor& gy, const Shape& x_shape, const Pooling& p);

Tensor avg_pool(const Tensor& x, const Pooling& p) {
  Tensor y = new_tensor(p.out, x.dtype(), x.device());
  kernels::Stream stream = stream_for(x.device());
  backend(x.device()).avg_pool2d(stream, raw(y), raw(contiguous(x.detach())), p.args);
  if (needs_grad(x)) {
    record("avg_pool2d", y, {x},
           [p, from = x.sizes()](GradContext& c) { c.set(0, avg_pool_spread(c.grad(), from, p)); });
  }
  return y;
}

/// The transpose of avg_pool.
Tensor avg_pool_spread(const Tensor& gy, const Shape& x_shape, const Pooling& p) {
  Tensor gx = new_tensor(x_shape, gy.dtype(), gy.device());
  kernels::Stream stream = stream_for(gy.device());
  backend(gy.device()).avg_pool2d_backward(stream, raw(gx), raw(contiguous(gy.detach())), p.args);
  if (needs_grad(gy)) {
    record("avg_pool2d_spread", gx, {gy}, [p](GradContext& c) { c.set(0, avg_pool(c.grad(), p)); });
  }
  return gx;
}

}  // namespace

Tensor max_pool2d(const Tensor& x, Pair kernel, Pair stride, Pair padding) {
  const Pooling p = pooling("max_pool2d", x, kernel, stride, padding);
  Tensor y = new_tensor(p.out, x.dtype(), x.device());
  const Tensor index = new_tensor(p.out, kInt64, x.device());
  kernels::Stream stream = stream_for(x.device());
  backend(x.device()).max_pool2d(stream, raw(y), raw(index), raw(contiguous(x.detach())), p.args);
  if (needs_grad(x)) {
    record("max_pool2d", y, {x}, [index = saved(index), from = x.sizes()](GradContext& c) {
      c.set(0, max_pool_spread(c.grad(), index.get(c), from));
    });
  }
  return y;
}

Tensor avg_pool2d(const Tensor& x, Pair kernel, Pair stride, Pair padding) {
  return avg_pool(x, pooling("avg_pool2d", x, kernel, stride, padding));
}

std::vector<OpRecord> conv_records() {
  return {
      {"conv2d", "cross-correlation with a bank of kernels",
       [] {
         auto call = [](Conv2dOptions o) { return [o](const Inputs& x) { return conv2d(x[0], x[1], x[2], o); }; };
         auto in = [](const Shape& x, const Shape& w) { return Inputs{sample(x), sample(w, 1), sample({w[0]}, 2)}; };
         return std::vector<OpSample>{
             make_sample("F.conv2d(x0, x1, x2)", in({2, 2, 4, 3}, {3, 2, 2, 2}), call({})),
             make_sample("F.conv2d(x0, x1, x2, stride=(2, 1), padding=(1, 2), dilation=(1, 2))",
                         in({1, 2, 5, 4}, {2, 2, 3, 2}),
                         call({.stride = {2, 1}, .padding = {1, 2}, .dilation = {1, 2}})),
             make_sample("F.conv2d(x0, x1, x2, stride=2, padding=1, groups=2)", in({2, 4, 4, 4}, {4, 2, 3, 3}),
                         call({.stride = {2, 2}, .padding = {1, 1}, .groups = 2})),
             make_sample("F.conv2d(x0, x1)", {sample({1, 3, 2, 2}), sample({2, 3, 1, 1}, 1)},
                         [](const Inputs& x) { return conv2d(x[0], x[1]); }),
             make_sample("F.conv2d(x0, x1, x2)", in({0, 2, 4, 3}, {3, 2, 2, 2}), call({}))};
       }},
      {"max_pool2d", "largest of each window",
       [] {
         auto call = [](Pair k, Pair s, Pair p) { return [=](const Inputs& x) { return max_pool2d(x[0], k, s, p); }; };
         return std::vector<OpSample>{
             make_sample("F.max_pool2d(x0, 2)", {sample({2, 2, 4, 5})}, call({2, 2}, {0, 0}, {0, 0})),
             make_sample("F.max_pool2d(x0, (3, 2), stride=(1, 2), padding=1)", {sample({1, 2, 4, 5})},
                         call({3, 2}, {1, 2}, {1, 1})),
             make_sample("F.max_pool2d(x0, 2)", {sample({0, 2, 4, 4})}, call({2, 2}, {0, 0}, {0, 0}))};
       }},
      {"avg_pool2d", "mean of each window",
       [] {
         auto call = [](Pair k, Pair s, Pair p) { return [=](const Inputs& x) { return avg_pool2d(x[0], k, s, p); }; };
         return std::vector<OpSample>{
             make_sample("F.avg_pool2d(x0, 2)", {sample({2, 2, 4, 5})}, call({2, 2}, {0, 0}, {0, 0})),
             make_sample("F.avg_pool2d(x0, (3, 2), stride=(1, 2), padding=1)", {sample({1, 2, 4, 5})},
                         call({3, 2}, {1, 2}, {1, 1})),
             make_sample("F.avg_pool2d(x0, 2)", {sample({0, 2, 4, 4})}, call({2, 2}, {0, 0}, {0, 0}))};
       }},
  };
}

}  // namespace tandem
