// Indexing along a dimension. Indices are data: a bad one is reported in the stream, and its result is zero or absent.

#include <algorithm>
#include <cstring>

#include "cpu_backend.h"
#include "index_fault.h"
#include "parallel.h"

namespace tandem::kernels::cpu {
namespace {

using Index = std::int64_t;

constexpr Index kGrain = 1 << 14;  // elements worth a thread

bool is_contiguous(const View& v, int from_dim) {
  Index expected = 1;
  for (int d = v.ndim - 1; d >= from_dim; --d) {
    if (v.shape[d] != 1 && v.strides[d] != expected) return false;
    expected *= v.shape[d];
  }
  return true;
}

/// Walks the elements of a shape in row-major order, from any position on, with the offsets of K views of it.
template <int K>
class Walk {
 public:
  /// Dimension `skip` (if any) stays at 0.
  Walk(const Index* shape, int ndim, const Index* const (&strides)[K], int skip = -1) {
    for (int d = 0; d < ndim; ++d) {
      if (d == skip) continue;
      shape_[ndim_] = shape[d];
      for (int v = 0; v < K; ++v) strides_[v][ndim_] = strides[v][d];
      ++ndim_;
    }
  }
  void seek(Index position) {
    for (int v = 0; v < K; ++v) offsets[v] = 0;
    for (int d = ndim_ - 1; d >= 0; --d) {
      at_[d] = position % shape_[d];
      position /= shape_[d];
      for (int v = 0; v < K; ++v) offsets[v] += at_[d] * strides_[v][d];
    }
  }
  void next() {
    for (int d = ndim_ - 1; d >= 0; --d) {
      for (int v = 0; v < K; ++v) offsets[v] += strides_[v][d];
      if (++at_[d] < shape_[d]) return;
      for (int v = 0; v < K; ++v) offsets[v] -= at_[d] * strides_[v][d];
      at_[d] = 0;
    }
  }
  Index offsets[K] = {};

 private:
  int ndim_ = 0;
  Index shape_[kMaxDims] = {}, at_[kMaxDims] = {}, strides_[K][kMaxDims] = {};
};

/// Reports the first bad index of a view.
void check_indices(Stream& stream, const View& index, Index limit) {
  const Index n = index.numel();
  if (n == 0) return;
  Walk<1> walk(index.shape, index.ndim, {index.strides});
  walk.seek(0);
  for (Index i = 0; i < n; ++i, walk.next()) {
    const Index value = index.as<const Index>()[walk.offsets[0]];
    if (!in_range(value, limit)) return report_fault(stream, i, value, limit);
  }
}

template <class T>
T sum_of(T a, T b) {
  if constexpr (std::is_same_v<T, bool>) {
    return a || b;
  } else {
    return static_cast<T>(a + b);
  }
}

/// The numbers of elements before and after `dim`, and whether it pays to treat the latter, gapless in both views, as
/// runs.
struct Slices {
  Slices(const View& a, const View& b, int dim) {
    for (int d = 0; d < a.ndim; ++d) {
      if (d < dim) outer *= a.shape[d];
      if (d > dim) inner *= a.shape[d];
    }
    dense = inner > 1 && is_contiguous(a, dim + 1) && is_contiguous(b, dim + 1);
  }
  bool dense = false;
  Index outer = 1, inner = 1;
};

template <class T>
void select(const Stream& stream, const View& out, const View& in, int dim, const View& index) {
  const Slices s(out, in, dim);
  const Index count = out.shape[dim];
  if (s.outer * s.inner * count == 0) return;
  const Index* indices = index.as<const Index>();
  parallel_for(stream, s.outer * count, std::max<Index>(1, kGrain / s.inner), [&](Index begin, Index end) {
    Walk<2> walk(out.shape, out.ndim, {out.strides, in.strides}, dim);
    for (Index i = begin; i < end; ++i) {
      const Index j = i % count;
      const Index from = indices[j * index.strides[0]];
      const bool good = in_range(from, in.shape[dim]);
      walk.seek(i / count * s.inner);
      T* to = out.as<T>() + j * out.strides[dim];
      const T* source = in.as<const T>() + (good ? from : 0) * in.strides[dim];
      if (s.dense) {
        if (good) {
          std::memcpy(to + walk.offsets[0], source + walk.offsets[1], static_cast<std::size_t>(s.inner) * sizeof(T));
        } else {
          std::fill_n(to + walk.offsets[0], s.inner, T{});
        }
        continue;
      }
      for (Index r = 0; r < s.inner; ++r, walk.next()) {
        to[walk.offsets[0]] = good ? source[walk.offsets[1]] : T{};
      }
    }
  });
}

template <class T>
void add(const Stream& stream, const View& out, int dim, const View& index, const View& src) {
  const Slices s(src, out, dim);
  const Index count = src.shape[dim];
  if (s.outer * s.inner * count == 0) return;
  const Index* indices = index.as<const Index>();
  // Threads own slices of the other dimensions, so that every element is summed in order.
  const Index others = s.outer * s.inner;
  parallel_for(stream, others, std::max<Index>(16, kGrain / count), [&](Index begin, Index end) {
    Walk<2> walk(src.shape, src.ndim, {out.strides, src.strides}, dim);
    for (Index i = 0; i < count; ++i) {
      const Index to = indices[i * index.strides[0]];
      if (!in_range(to, out.shape[dim])) continue;
      T* sink = out.as<T>() + to * out.strides[dim];
      const T* source = src.as<const T>() + i * src.strides[dim];
      for (Index at = begin; at < end;) {
        walk.seek(at);
        if (s.dense) {
          const Index stop = std::min(end, (at / s.inner + 1) * s.inner);
          T* line = sink + walk.offsets[0];
          const T* addends = source + walk.offsets[1];
          for (Index r = 0; r < stop - at; ++r) line[r] = sum_of(line[r], addends[r]);
          at = stop;
          continue;
        }
        for (; at < end; ++at, walk.next()) {
          sink[walk.offsets[0]] = sum_of(sink[walk.offsets[0]], source[walk.offsets[1]]);
        }
      }
    }
  });
}

}  // namespace

void CpuBackend::index_select(Stream& stream, const View& out, const View& in, int dim, const View& index) const {
  check_indices(stream, index, in.shape[dim]);
  visit_dtype(out.dtype, [&](auto tag) { select<typename decltype(tag)::type>(stream, out, in, dim, index); });
}

void CpuBackend::index_add(Stream& stream, const View& out, int dim, const View& index, const View& src) const {
  check_indices(stream, index, out.shape[dim]);
  visit_dtype(out.dtype, [&](auto tag) { add<typename decltype(tag)::type>(stream, out, dim, index, src); });
}

void CpuBackend::gather(Stream& stream, const View& out, const View& in, int dim, const View& index) const {
  check_indices(stream, index, in.shape[dim]);
  const Index limit = in.shape[dim], step = in.strides[dim];
  Index in_strides[kMaxDims];
  std::copy_n(in.strides, in.ndim, in_strides);
  in_strides[dim] = 0;  // the index says where
  visit_dtype(out.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    parallel_for(stream, out.numel(), kGrain, [&](Index begin, Index end) {
      Walk<3> walk(out.shape, out.ndim, {out.strides, index.strides, in_strides});
      walk.seek(begin);
      for (Index i = begin; i < end; ++i, walk.next()) {
        const Index from = index.as<const Index>()[walk.offsets[1]];
        out.as<T>()[walk.offsets[0]] = in_range(from, limit) ? in.as<const T>()[walk.offsets[2] + from * step] : T{};
      }
    });
  });
}

void CpuBackend::scatter_add(Stream& stream, const View& out, int dim, const View& index, const View& src) const {
  check_indices(stream, index, out.shape[dim]);
  const Index limit = out.shape[dim], step = out.strides[dim];
  Index out_strides[kMaxDims];
  std::copy_n(out.strides, out.ndim, out_strides);
  out_strides[dim] = 0;  // the index says where
  visit_dtype(out.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const Index n = src.numel();
    if (n == 0) return;
    Walk<3> walk(src.shape, src.ndim, {out_strides, index.strides, src.strides});
    walk.seek(0);
    for (Index i = 0; i < n; ++i, walk.next()) {
      const Index to = index.as<const Index>()[walk.offsets[1]];
      if (!in_range(to, limit)) continue;
      T& sum = out.as<T>()[walk.offsets[0] + to * step];
      sum = sum_of(sum, src.as<const T>()[walk.offsets[2]]);
    }
  });
}

}  // namespace tandem::kernels::cpu
