// Convolutions as matrix products over unfolded images, for builds without cuDNN.
//
// With K = (ci / groups) kh kw and P = oh ow, per image and group: y (co, P) = w (co, K) columns (K, P);
// columns = w' gy, folded back into gx; gw = gy (co, images P) columns' (images P, K), the images side by side. Images
// go in chunks whose columns fit into kColumnBytes, at least one at a time; the chunks' weight gradients are added in
// order. Chunks depend on the shapes alone, and so do the results.

#include <algorithm>

#include "conv2d_edges.h"
#include "cuda_backend.h"
#include "im2col.cuh"
#include "libraries.h"
#include "queue.h"

namespace tandem::kernels::cuda {
namespace {

using Index = std::int64_t;

constexpr Index kColumnBytes = Index{64} << 20;
constexpr Index kAlignment = 256;

/// Sizes "per group" are ci, co and k; steps are in elements.
struct Sizes {
  Sizes(const View& x, const View& weight, const View& y, const Conv2dArgs& a)
      : args(a),
        dtype(x.dtype),
        n(x.shape[0]),
        groups(a.groups),
        ci(weight.shape[1]),
        co(weight.shape[0] / a.groups),
        k(ci * weight.shape[2] * weight.shape[3]),
        plane(y.shape[2] * y.shape[3]),
        x_step(groups * ci * x.shape[2] * x.shape[3]),
        y_step(groups * co * plane),
        column_step(groups * k * plane),
        element(static_cast<Index>(size_of(x.dtype))),
        chunk(std::clamp<Index>(kColumnBytes / std::max<Index>(1, column_step * element), 1, std::max<Index>(1, n))),
        pointwise(weight.shape[2] == 1 && weight.shape[3] == 1 && a.stride[0] == 1 && a.stride[1] == 1 &&
                  a.padding[0] == 0 && a.padding[1] == 0) {
    geometry.channels = groups * ci;
    geometry.h = x.shape[2], geometry.w = x.shape[3];
    geometry.kh = weight.shape[2], geometry.kw = weight.shape[3];
    geometry.oh = y.shape[2], geometry.ow = y.shape[3];
    std::copy_n(a.stride, 2, geometry.stride);
    std::copy_n(a.padding, 2, geometry.padding);
    std::copy_n(a.dilation, 2, geometry.dilation);
    geometry.image_stride = x_step;
  }
  Index column_bytes() const { return (chunk * column_step * element + kAlignment - 1) / kAlignment * kAlignment; }
  /// Columns of each image by themselves.
  ConvGeometry separate(Index images) const {
    ConvGeometry g = geometry;
    g.images = images;
    g.column_image_stride = column_step;
    g.column_row_stride = plane;
    return g;
  }
  /// Columns of all images side by side.
  ConvGeometry joined(Index images) const {
    ConvGeometry g = geometry;
    g.images = images;
    g.column_image_stride = plane;
    g.column_row_stride = images * plane;
    return g;
  }

  Conv2dArgs args;
  DType dtype;
  Index n, groups, ci, co, k, plane, x_step, y_step, column_step, element, chunk;
  bool pointwise;  // forward and input gradients need no columns
  ConvGeometry geometry;
};

void* offset(const Sizes& s, void* data, Index elements) { return static_cast<char*>(data) + elements * s.element; }

/// One matrix per image and group.
struct Matrices {
  void* data;
  Index image_step, group_step;
  Index rows, cols, row_stride, col_stride;
};

/// Three dimensions of memory.
struct Block {
  Block(DType dtype, void* data, const Index (&sizes)[3], const Index (&steps)[3])
      : view{data, shape, strides, 3, dtype} {
    std::copy_n(sizes, 3, shape);
    std::copy_n(steps, 3, strides);
  }
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;
  Index shape[3], strides[3];
  View view;
};

/// c = a b for every image and group, in batches over the more numerous of the two.
void multiply(const Backend& backend, Stream& stream, const Sizes& s, Index images, const Matrices& c,
              const Matrices& a, const Matrices& b) {
  const bool by_image = images >= s.groups;
  for (Index i = 0; i < (by_image ? s.groups : images); ++i) {
    const auto batch = [&](const Matrices& m) {
      return Block(s.dtype, offset(s, m.data, i * (by_image ? m.group_step : m.image_step)),
                   {by_image ? images : s.groups, m.rows, m.cols},
                   {by_image ? m.image_step : m.group_step, m.row_stride, m.col_stride});
    };
    const Block out = batch(c), left = batch(a), right = batch(b);
    backend.gemm(stream, out.view, left.view, right.view, 0);
  }
}

/// Calls f(first image, images) for all chunks.
template <class F>
void for_each_chunk(const Sizes& s, F&& f) {
  for (Index first = 0; first < s.n; first += s.chunk) f(first, std::min(s.chunk, s.n - first));
}

}  // namespace

cudnnContext* make_cudnn(cudaStream_t) { return nullptr; }
void destroy_cudnn(cudnnContext*) noexcept {}

std::int64_t CudaBackend::conv2d_workspace(Stream&, const View& x, const View& w, const View& y,
                                           const Conv2dArgs& args) const {
  const Sizes s(x, w, y, args);
  return s.column_bytes() + s.chunk * s.y_step * s.element;
}

void CudaBackend::conv2d(Stream& stream, const View& y, const View& x, const View& w, const View& bias,
                         const Conv2dArgs& args, void* workspace) const {
  if (conv2d_is_empty(*this, stream, y, x, w, &bias)) return;
  const Sizes s(x, w, y, args);
  for_each_chunk(s, [&](Index first, Index images) {
    void* input = offset(s, x.data, first * s.x_step);
    if (!s.pointwise) {
      Scope scope(stream, "conv2d");
      im2col(scope.stream(), s.separate(images), input, workspace, s.dtype);
    }
    void* columns = s.pointwise ? input : workspace;
    multiply(*this, stream, s, images,
             {offset(s, y.data, first * s.y_step), s.y_step, s.co * s.plane, s.co, s.plane, s.plane, 1},
             {w.data, 0, s.co * s.k, s.co, s.k, s.k, 1},
             {columns, s.column_step, s.k * s.plane, s.k, s.plane, s.plane, 1});
  });
  conv2d_add_bias(*this, stream, y, bias);
}

void CudaBackend::conv2d_input(Stream& stream, const View& gx, const View& gy, const View& w, const Conv2dArgs& args,
                               void* workspace) const {
  if (conv2d_is_empty(*this, stream, gx, gy, w)) return;
  const Sizes s(gx, w, gy, args);
  for_each_chunk(s, [&](Index first, Index images) {
    void* output = offset(s, gx.data, first * s.x_step);
    void* columns = s.pointwise ? output : workspace;
    multiply(*this, stream, s, images, {columns, s.column_step, s.k * s.plane, s.k, s.plane, s.plane, 1},
             {w.data, 0, s.co * s.k, s.k, s.co, 1, s.k},
             {offset(s, gy.data, first * s.y_step), s.y_step, s.co * s.plane, s.co, s.plane, s.plane, 1});
    if (!s.pointwise) {
      Scope scope(stream, "conv2d_input");
      col2im(scope.stream(), s.separate(images), workspace, output, s.dtype);
    }
  });
}

void CudaBackend::conv2d_weight(Stream& stream, const View& gw, const View& gy, const View& x, const Conv2dArgs& args,
                                void* workspace) const {
  if (conv2d_is_empty(*this, stream, gw, gy, x)) return;
  const Sizes s(x, gw, gy, args);
  for_each_chunk(s, [&](Index first, Index images) {
    {
      Scope scope(stream, "conv2d_weight");
      im2col(scope.stream(), s.joined(images), offset(s, x.data, first * s.x_step), workspace, s.dtype);
    }
    const Index cols = images * s.plane, channels = s.groups * s.co;
    void* grad = offset(s, gy.data, first * s.y_step);
    if (images > 1) {
      void* joined = static_cast<char*>(workspace) + s.column_bytes();
      copy(stream, Block(s.dtype, joined, {channels, images, s.plane}, {cols, s.plane, 1}).view,
           Block(s.dtype, grad, {channels, images, s.plane}, {s.plane, s.y_step, 1}).view);
      grad = joined;
    }
    gemm(stream, Block(s.dtype, gw.data, {s.groups, s.co, s.k}, {s.co * s.k, s.k, 1}).view,
         Block(s.dtype, grad, {s.groups, s.co, cols}, {s.co * cols, cols, 1}).view,
         Block(s.dtype, workspace, {s.groups, cols, s.k}, {s.k * cols, 1, cols}).view, first == 0 ? 0 : 1);
  });
}

}  // namespace tandem::kernels::cuda
