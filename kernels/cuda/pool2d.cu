// Pooling.
//
// Forward, and the averages' backward: one thread per result, which goes over its window, or over the windows that have
// it, in row-major order. The elements that neighbouring threads share come from cache, so that an element of the
// larger side and one of the smaller are read or written once each; max_pool2d writes 8 bytes of index per output
// besides.
//
// max_pool2d_backward does not know the windows. Every input element keeps a list of the outputs that took it, which
// integer exchanges build in any order; the sum goes over the list in ascending order, so it is the CPU's, bit for bit.
// The lists lie in shared memory where a block can hold whole planes, or a good part of one: then gx is written once,
// and gy and the index are read once per part. Larger planes have lists in scratch memory, 4 bytes per element of gx
// and gy, written twice and read once.

#include <limits>

#include "common.cuh"
#include "cuda_backend.h"
#include "planes.cuh"

namespace tandem::kernels::cuda {
namespace {

using Index = std::int64_t;

/// Sizes of a pooling from planes (h, w) to planes (oh, ow).
struct Shape {
  Shape(const View& x, const View& y)
      : planes(x.shape[0] * x.shape[1]), h(x.shape[2]), w(x.shape[3]), oh(y.shape[2]), ow(y.shape[3]) {}
  Index planes, h, w, oh, ow;
};

/// The input positions [begin, end) of output position `o` in one dimension, padding left out.
struct Window {
  __device__ Window(Index o, Index kernel, Index stride, Index padding, Index size) {
    const Index first = o * stride - padding, last = first + kernel;
    begin = first > 0 ? first : 0;
    end = last < size ? last : size;
  }
  Index begin, end;
};

/// The output positions [begin, end) whose windows have input position `i` in one dimension.
struct Windows {
  __device__ Windows(Index i, Index kernel, Index stride, Index padding, Index count) {
    const Index from_start = i + padding, past = from_start - kernel;
    begin = past < 0 ? 0 : past / stride + 1;
    end = from_start / stride + 1;
    if (end > count) end = count;
  }
  Index begin, end;
};

/// Whether v takes the place of the extreme so far: it is greater, or the first NaN.
template <class T>
__device__ bool takes_over(T v, T best) {
  return v > best || (v != v && best == best);
}

template <class T>
__global__ void max_pool(Shape s, Pool2dArgs a, const T* x, T* y, Index* index, T lowest) {
  for_each_in_planes(s.planes, s.oh * s.ow, [&](Index plane, Index o) {
    const Window rows(o / s.ow, a.kernel[0], a.stride[0], a.padding[0], s.h);
    const Window cols(o % s.ow, a.kernel[1], a.stride[1], a.padding[1], s.w);
    const T* from = x + plane * s.h * s.w;
    T best = lowest;
    Index at = rows.begin * s.w + cols.begin;
    for (Index r = rows.begin; r < rows.end; ++r) {
      for (Index c = cols.begin; c < cols.end; ++c) {
        const T v = from[r * s.w + c];
        if (takes_over(v, best)) {
          best = v;
          at = r * s.w + c;
        }
      }
    }
    y[plane * s.oh * s.ow + o] = best;
    index[plane * s.oh * s.ow + o] = at;
  });
}

template <class T>
__global__ void take(Shape s, const T* x, const Index* index, T* y) {
  for_each_in_planes(s.planes, s.oh * s.ow, [&](Index plane, Index o) {
    const Index at = plane * s.oh * s.ow + o;
    y[at] = x[plane * s.h * s.w + index[at]];
  });
}

template <class T>
__global__ void average_pool(Shape s, Pool2dArgs a, const T* x, T* y) {
  const T count = static_cast<T>(a.kernel[0] * a.kernel[1]);
  for_each_in_planes(s.planes, s.oh * s.ow, [&](Index plane, Index o) {
    const Window rows(o / s.ow, a.kernel[0], a.stride[0], a.padding[0], s.h);
    const Window cols(o % s.ow, a.kernel[1], a.stride[1], a.padding[1], s.w);
    const T* from = x + plane * s.h * s.w;
    T sum = 0;
    for (Index r = rows.begin; r < rows.end; ++r) {
      for (Index c = cols.begin; c < cols.end; ++c) sum += from[r * s.w + c];
    }
    y[plane * s.oh * s.ow + o] = sum / count;
  });
}

template <class T>
__global__ void average_pool_backward(Shape s, Pool2dArgs a, const T* gy, T* gx) {
  const T count = static_cast<T>(a.kernel[0] * a.kernel[1]);
  for_each_in_planes(s.planes, s.h * s.w, [&](Index plane, Index i) {
    const Windows rows(i / s.w, a.kernel[0], a.stride[0], a.padding[0], s.oh);
    const Windows cols(i % s.w, a.kernel[1], a.stride[1], a.padding[1], s.ow);
    const T* from = gy + plane * s.oh * s.ow;
    T sum = 0;
    for (Index r = rows.begin; r < rows.end; ++r) {
      for (Index c = cols.begin; c < cols.end; ++c) sum += from[r * s.ow + c] / count;
    }
    gx[plane * s.h * s.w + i] = sum;
  });
}

// The lists of max_pool2d_backward. `heads[i]` is the last output put into element i's list, `next[o]` the one put
// there before output o. Planes have fewer than 2^32 - 1 outputs: larger ones do not fit into any device.

using Link = unsigned;
constexpr Link kEnd = ~Link{0};

__device__ void put(Link* heads, Link* next, Index element, Link output) {
  next[output] = atomicExch(heads + element, output);
}

/// Sums gy over a list in ascending order, in as many walks as it has links: a few, in all but odd cases.
template <class T>
__device__ T sum_of_list(Link head, const Link* next, const T* gy) {
  T sum = 0;
  for (Index last = -1;;) {
    Link lowest = kEnd;
    for (Link o = head; o != kEnd; o = next[o]) {
      if (static_cast<Index>(o) > last && o < lowest) lowest = o;
    }
    if (lowest == kEnd) return sum;
    sum += gy[lowest];
    last = lowest;
  }
}

/// What a block of max_backward_shared has lists for: elements [0, heads) of whole planes, or of a part of one plane.
struct Part {
  Index planes;     ///< of the block: 1 where planes have several parts
  Index parts;      ///< of a plane
  Index heads;      ///< elements of gx
  Index size, out;  ///< of a plane of gx, and of gy
};

constexpr Index kHeads = 8192, kLinks = 4096;  // that a block has room for: 48 KiB
constexpr Index kMaxParts = 4;

template <class T>
__global__ void max_backward_shared(Part p, Index planes, const T* gy, const Index* index, T* gx) {
  TANDEM_DYNAMIC_SHARED(Link, links);
  Link* heads = links;
  Link* next = links + p.heads;
  const Index blocks = (planes + p.planes - 1) / p.planes * p.parts;
  for (Index b = blockIdx.x; b < blocks; b += gridDim.x) {
    const Index plane = b / p.parts * p.planes, start = b % p.parts * p.heads;
    const Index count = planes - plane < p.planes ? planes - plane : p.planes;
    const Index elements = p.parts == 1 ? count * p.size : (p.size - start < p.heads ? p.size - start : p.heads);
    const T* from = gy + plane * p.out;
    const Index* at = index + plane * p.out;
    T* to = gx + plane * p.size + start;
    for (Index i = threadIdx.x; i < elements; i += blockDim.x) heads[i] = kEnd;
    __syncthreads();
    for (Index o = threadIdx.x; o < count * p.out; o += blockDim.x) {
      const Index element = o / p.out * p.size + at[o] - start;
      if (element >= 0 && element < elements) put(heads, next, element, static_cast<Link>(o));
    }
    __syncthreads();
    for (Index i = threadIdx.x; i < elements; i += blockDim.x) to[i] = sum_of_list(heads[i], next, from);
    __syncthreads();
  }
}

__global__ void clear_heads(Link* heads, Index n) {
  for (Index i = global_index(); i < n; i += global_stride()) heads[i] = kEnd;
}

__global__ void put_all(Shape s, const Index* index, Link* heads, Link* next) {
  for_each_in_planes(s.planes, s.oh * s.ow, [&](Index plane, Index o) {
    const Index first = plane * s.oh * s.ow;
    put(heads + plane * s.h * s.w, next + first, index[first + o], static_cast<Link>(o));
  });
}

template <class T>
__global__ void sum_lists(Shape s, const T* gy, const Link* heads, const Link* next, T* gx) {
  for_each_in_planes(s.planes, s.h * s.w, [&](Index plane, Index i) {
    const Index first = plane * s.oh * s.ow, at = plane * s.h * s.w + i;
    gx[at] = sum_of_list(heads[at], next + first, gy + first);
  });
}

template <class T>
void max_backward(Scope& scope, const Shape& s, const T* gy, const Index* index, T* gx) {
  Part p{1, 1, 0, s.h * s.w, s.oh * s.ow};
  if (s.planes == 0 || p.size == 0) return;
  p.parts = (p.size + kHeads - 1) / kHeads;
  if (p.out <= kLinks && p.parts <= kMaxParts) {
    constexpr Index enough = 2048;  // elements for a block
    if (p.size < enough && p.out < enough) p.planes = enough / (p.size > p.out ? p.size : p.out);
    if (p.planes > s.planes) p.planes = s.planes;
    p.heads = p.parts == 1 ? p.planes * p.size : kHeads;
    const Index blocks = (s.planes + p.planes - 1) / p.planes * p.parts;
    const std::size_t shared = static_cast<std::size_t>(p.heads + p.planes * p.out) * sizeof(Link);
    launch(max_backward_shared<T>, blocks_for(blocks, 1), kBlock, shared, scope.stream(), p, s.planes, gy, index, gx);
    return;
  }
  const Index elements = s.planes * p.size, outputs = s.planes * p.out;
  Link* heads = static_cast<Link*>(scope.scratch(static_cast<std::size_t>(elements + outputs) * sizeof(Link)));
  Link* next = heads + elements;
  launch(clear_heads, blocks_for(elements), kBlock, 0, scope.stream(), heads, elements);
  const PlaneLaunch over_outputs(s.planes, p.out), over_elements(s.planes, p.size);
  launch(put_all, over_outputs.grid, over_outputs.block, 0, scope.stream(), s, index, heads, next);
  launch(sum_lists<T>, over_elements.grid, over_elements.block, 0, scope.stream(), s, gy, heads, next, gx);
}

}  // namespace

void CudaBackend::max_pool2d(Stream& stream, const View& y, const View& index, const View& x,
                             const Pool2dArgs& a) const {
  Scope scope(stream, "max_pool2d");
  const Shape s(x, y);
  const PlaneLaunch shape(s.planes, s.oh * s.ow);
  visit_floating(x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    launch(max_pool<T>, shape.grid, shape.block, 0, scope.stream(), s, a, x.as<const T>(), y.as<T>(), index.as<Index>(),
           -std::numeric_limits<T>::infinity());
  });
}

void CudaBackend::max_pool2d_backward(Stream& stream, const View& gx, const View& gy, const View& index) const {
  Scope scope(stream, "max_pool2d_backward");
  visit_floating(gx.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    max_backward(scope, Shape(gx, gy), gy.as<const T>(), index.as<const Index>(), gx.as<T>());
  });
}

void CudaBackend::max_pool2d_take(Stream& stream, const View& y, const View& x, const View& index) const {
  Scope scope(stream, "max_pool2d_take");
  const Shape s(x, y);
  const PlaneLaunch shape(s.planes, s.oh * s.ow);
  visit_floating(x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    launch(take<T>, shape.grid, shape.block, 0, scope.stream(), s, x.as<const T>(), index.as<const Index>(), y.as<T>());
  });
}

void CudaBackend::avg_pool2d(Stream& stream, const View& y, const View& x, const Pool2dArgs& a) const {
  Scope scope(stream, "avg_pool2d");
  const Shape s(x, y);
  const PlaneLaunch shape(s.planes, s.oh * s.ow);
  visit_floating(x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    launch(average_pool<T>, shape.grid, shape.block, 0, scope.stream(), s, a, x.as<const T>(), y.as<T>());
  });
}

void CudaBackend::avg_pool2d_backward(Stream& stream, const View& gx, const View& gy, const Pool2dArgs& a) const {
  Scope scope(stream, "avg_pool2d_backward");
  const Shape s(gx, gy);
  const PlaneLaunch shape(s.planes, s.h * s.w);
  visit_floating(gx.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    launch(average_pool_backward<T>, shape.grid, shape.block, 0, scope.stream(), s, a, gy.as<const T>(), gx.as<T>());
  });
}

}  // namespace tandem::kernels::cuda
