// Pooling over windows of images; one plane of one image after the other.

#include <algorithm>
#include <limits>

#include "cpu_backend.h"
#include "parallel.h"

namespace tandem::kernels::cpu {
namespace {

using Index = std::int64_t;

constexpr Index kGrain = 1 << 13;  // elements worth a thread

/// Sizes of a pooling from planes (h, w) to planes (oh, ow).
struct Shape {
  Shape(const View& x, const View& y)
      : planes(x.shape[0] * x.shape[1]), h(x.shape[2]), w(x.shape[3]), oh(y.shape[2]), ow(y.shape[3]) {}
  Index grain() const { return std::max<Index>(1, kGrain / (h * w + 1)); }
  Index planes, h, w, oh, ow;
};

/// The input positions [begin, end) of output position `o` in one dimension, padding left out.
struct Window {
  Window(Index o, Index kernel, Index stride, Index padding, Index size)
      : begin(std::max<Index>(0, o * stride - padding)), end(std::min(size, o * stride - padding + kernel)) {}
  Index begin, end;
};

/// Whether v takes the place of the extreme so far: it is greater, or the first NaN.
template <class T>
bool takes_over(T v, T best) {
  return v > best || (v != v && best == best);
}

template <class T>
void max_plane(const Shape& s, const Pool2dArgs& a, const T* x, T* y, Index* index) {
  for (Index i = 0; i < s.oh; ++i) {
    const Window rows(i, a.kernel[0], a.stride[0], a.padding[0], s.h);
    for (Index j = 0; j < s.ow; ++j) {
      const Window cols(j, a.kernel[1], a.stride[1], a.padding[1], s.w);
      T best = -std::numeric_limits<T>::infinity();
      Index at = rows.begin * s.w + cols.begin;
      for (Index r = rows.begin; r < rows.end; ++r) {
        for (Index c = cols.begin; c < cols.end; ++c) {
          if (takes_over(x[r * s.w + c], best)) {
            best = x[r * s.w + c];
            at = r * s.w + c;
          }
        }
      }
      *y++ = best;
      *index++ = at;
    }
  }
}

/// Windows of 2x2 side by side, without branches.
template <class T>
void max_plane_2x2(const Shape& s, const T* x, T* y, Index* index) {
  for (Index i = 0; i < s.oh; ++i) {
    const T* upper = x + 2 * i * s.w;
    const T* lower = upper + s.w;
    for (Index j = 0; j < s.ow; ++j) {
      const Index corner = 2 * i * s.w + 2 * j;
      const bool right = takes_over(upper[2 * j + 1], upper[2 * j]);
      const T top = right ? upper[2 * j + 1] : upper[2 * j];
      const bool low_right = takes_over(lower[2 * j + 1], lower[2 * j]);
      const T bottom = low_right ? lower[2 * j + 1] : lower[2 * j];
      const bool low = takes_over(bottom, top);
      *y++ = low ? bottom : top;
      *index++ = corner + (low ? s.w + low_right : Index{right});
    }
  }
}

template <class T>
void average_plane(const Shape& s, const Pool2dArgs& a, const T* x, T* y) {
  const T count = static_cast<T>(a.kernel[0] * a.kernel[1]);
  for (Index i = 0; i < s.oh; ++i) {
    const Window rows(i, a.kernel[0], a.stride[0], a.padding[0], s.h);
    for (Index j = 0; j < s.ow; ++j) {
      const Window cols(j, a.kernel[1], a.stride[1], a.padding[1], s.w);
      T sum = 0;
      for (Index r = rows.begin; r < rows.end; ++r) {
        for (Index c = cols.begin; c < cols.end; ++c) sum += x[r * s.w + c];
      }
      *y++ = sum / count;
    }
  }
}

template <class T>
void average_plane_backward(const Shape& s, const Pool2dArgs& a, const T* gy, T* gx) {
  const T count = static_cast<T>(a.kernel[0] * a.kernel[1]);
  std::fill_n(gx, s.h * s.w, T(0));
  for (Index i = 0; i < s.oh; ++i) {
    const Window rows(i, a.kernel[0], a.stride[0], a.padding[0], s.h);
    for (Index j = 0; j < s.ow; ++j) {
      const Window cols(j, a.kernel[1], a.stride[1], a.padding[1], s.w);
      const T g = *gy++ / count;
      for (Index r = rows.begin; r < rows.end; ++r) {
        for (Index c = cols.begin; c < cols.end; ++c) gx[r * s.w + c] += g;
      }
    }
  }
}

}  // namespace

void CpuBackend::max_pool2d(Stream& stream, const View& y, const View& index, const View& x,
                            const Pool2dArgs& a) const {
  const Shape s(x, y);
  const bool halves = a.kernel[0] == 2 && a.kernel[1] == 2 && a.stride[0] == 2 && a.stride[1] == 2 &&
                      a.padding[0] == 0 && a.padding[1] == 0;
  visit_floating(x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    parallel_for(stream, s.planes, s.grain(), [&](Index begin, Index end) {
      for (Index p = begin; p < end; ++p) {
        const T* from = x.as<const T>() + p * s.h * s.w;
        T* to = y.as<T>() + p * s.oh * s.ow;
        Index* at = index.as<Index>() + p * s.oh * s.ow;
        if (halves) {
          max_plane_2x2(s, from, to, at);
        } else {
          max_plane(s, a, from, to, at);
        }
      }
    });
  });
}

void CpuBackend::max_pool2d_backward(Stream& stream, const View& gx, const View& gy, const View& index) const {
  const Shape s(gx, gy);
  const Index out = s.oh * s.ow;
  visit_floating(gx.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    parallel_for(stream, s.planes, s.grain(), [&](Index begin, Index end) {
      for (Index p = begin; p < end; ++p) {
        T* to = gx.as<T>() + p * s.h * s.w;
        const T* from = gy.as<const T>() + p * out;
        const Index* at = index.as<const Index>() + p * out;
        std::fill_n(to, s.h * s.w, T(0));
        for (Index o = 0; o < out; ++o) to[at[o]] += from[o];
      }
    });
  });
}

void CpuBackend::max_pool2d_take(Stream& stream, const View& y, const View& x, const View& index) const {
  const Shape s(x, y);
  const Index out = s.oh * s.ow;
  visit_floating(x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    parallel_for(stream, s.planes, s.grain(), [&](Index begin, Index end) {
      for (Index p = begin; p < end; ++p) {
        const T* from = x.as<const T>() + p * s.h * s.w;
        T* to = y.as<T>() + p * out;
        const Index* at = index.as<const Index>() + p * out;
        for (Index o = 0; o < out; ++o) to[o] = from[at[o]];
      }
    });
  });
}

void CpuBackend::avg_pool2d(Stream& stream, const View& y, const View& x, const Pool2dArgs& a) const {
  const Shape s(x, y);
  visit_floating(x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    parallel_for(stream, s.planes, s.grain(), [&](Index begin, Index end) {
      for (Index p = begin; p < end; ++p) {
        average_plane(s, a, x.as<const T>() + p * s.h * s.w, y.as<T>() + p * s.oh * s.ow);
      }
    });
  });
}

void CpuBackend::avg_pool2d_backward(Stream& stream, const View& gx, const View& gy, const Pool2dArgs& a) const {
  const Shape s(gx, gy);
  visit_floating(gx.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    parallel_for(stream, s.planes, s.grain(), [&](Index begin, Index end) {
      for (Index p = begin; p < end; ++p) {
        average_plane_backward(s, a, gy.as<const T>() + p * s.oh * s.ow, gx.as<T>() + p * s.h * s.w);
      }
    });
  });
}

}  // namespace tandem::kernels::cpu
