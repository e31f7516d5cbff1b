// Unfolding for convolutions.
//
// im2col: one thread per output position of a plane writes its kh * kw elements, each a line of neighbouring threads;
// the input, read kh * kw times, comes from cache but for the first time. One read and kh * kw writes per element.
// col2im: one thread per input element gathers what im2col made of it, in order of the kernel's elements, so that sums
// are the same in every run. kh * kw reads and one write per element.

#include "im2col.cuh"

#include "common.cuh"
#include "planes.cuh"

namespace tandem::kernels::cuda {
namespace {

using Index = std::int64_t;

template <class T>
__global__ void unfold(ConvGeometry g, const T* x, T* columns) {
  for_each_in_planes(g.images * g.channels, g.oh * g.ow, [&](Index plane, Index at) {
    const Index image = plane / g.channels, channel = plane % g.channels;
    const T* from = x + image * g.image_stride + channel * g.h * g.w;
    T* to = columns + image * g.column_image_stride + channel * g.kh * g.kw * g.column_row_stride + at;
    const Index top = at / g.ow * g.stride[0] - g.padding[0], left = at % g.ow * g.stride[1] - g.padding[1];
    for (Index i = 0; i < g.kh; ++i) {
      const Index row = top + i * g.dilation[0];
      for (Index j = 0; j < g.kw; ++j, to += g.column_row_stride) {
        const Index col = left + j * g.dilation[1];
        const bool inside = row >= 0 && row < g.h && col >= 0 && col < g.w;
        *to = inside ? from[row * g.w + col] : T(0);
      }
    }
  });
}

template <class T>
__global__ void fold(ConvGeometry g, const T* columns, T* x) {
  for_each_in_planes(g.images * g.channels, g.h * g.w, [&](Index plane, Index at) {
    const Index image = plane / g.channels, channel = plane % g.channels;
    const T* from = columns + image * g.column_image_stride + channel * g.kh * g.kw * g.column_row_stride;
    const Index row = at / g.w + g.padding[0], col = at % g.w + g.padding[1];
    T sum = 0;
    for (Index i = 0; i < g.kh; ++i) {
      const Index y = row - i * g.dilation[0], p = y / g.stride[0];
      if (y < 0 || p >= g.oh || p * g.stride[0] != y) continue;
      for (Index j = 0; j < g.kw; ++j) {
        const Index z = col - j * g.dilation[1], q = z / g.stride[1];
        if (z < 0 || q >= g.ow || q * g.stride[1] != z) continue;
        sum += from[(i * g.kw + j) * g.column_row_stride + p * g.ow + q];
      }
    }
    x[image * g.image_stride + channel * g.h * g.w + at] = sum;
  });
}

}  // namespace

void im2col(cudaStream_t stream, const ConvGeometry& g, const void* x, void* columns, DType dtype) {
  const PlaneLaunch shape(g.images * g.channels, g.oh * g.ow);
  visit_floating(dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    launch(unfold<T>, shape.grid, shape.block, 0, stream, g, static_cast<const T*>(x), static_cast<T*>(columns));
  });
}

void col2im(cudaStream_t stream, const ConvGeometry& g, const void* columns, void* x, DType dtype) {
  const PlaneLaunch shape(g.images * g.channels, g.h * g.w);
  visit_floating(dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    launch(fold<T>, shape.grid, shape.block, 0, stream, g, static_cast<const T*>(columns), static_cast<T*>(x));
  });
}

}  // namespace tandem::kernels::cuda
