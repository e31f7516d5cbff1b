// Indexing along a dimension. Indices are data: a bad one is reported, and its result is zero or absent.
//
// index_select, gather: one read and one write per element, and the indices; rows that allow it go 16 bytes at a time.
// index_add, scatter_add: an element's sum goes through its sources in order, as on the CPU, so that the bits are the
// same, whatever the hardware does. With few sources for each line along the dimension (a "lane"), or with lanes enough
// to fill the device, a thread goes along a lane: two reads and a write per source. Otherwise sources are sorted by
// destination, and the first one of every run of equals, which has one thread per element of a row, or 16 bytes of it,
// sums the run: one read per source, one read and one write per destination.

#include "common.cuh"
#include "cuda_backend.h"
#include "sort.h"

namespace tandem::kernels::cuda {
namespace {

using Index = std::int64_t;

/// From a position in row-major order to the offsets of K views, over some of their dimensions.
template <int K>
struct Walk {
  struct Offsets {
    Index v[K];
  };

  /// Dimensions of `shape` but `skip`, as few as the strides of the views allow.
  Walk(const Index* sizes, int count, const Index* const (&steps)[K], int skip = -1) {
    for (int d = 0; d < count; ++d) {
      if (d == skip || sizes[d] == 1) continue;
      bool even = ndim > 0;
      for (int v = 0; v < K && even; ++v) even = strides[v][ndim - 1] == steps[v][d] * sizes[d];
      if (!even) ++ndim;
      shape[ndim - 1] = even ? shape[ndim - 1] * sizes[d] : sizes[d];
      for (int v = 0; v < K; ++v) strides[v][ndim - 1] = steps[v][d];
    }
  }
  __device__ Offsets at(Index position) const {
    Offsets offsets{};
    for (int d = ndim - 1; d > 0; --d) {
      const Index rest = position / shape[d], here = position - rest * shape[d];
      position = rest;
      for (int v = 0; v < K; ++v) offsets.v[v] += here * strides[v][d];
    }
    if (ndim > 0) {
      for (int v = 0; v < K; ++v) offsets.v[v] += position * strides[v][0];
    }
    return offsets;
  }
  /// Whether n elements that are neighbours in order are neighbours in memory, given aligned data.
  bool has_packs_of(Index n) const {
    if (ndim == 0 || shape[ndim - 1] % n != 0) return false;
    for (int v = 0; v < K; ++v) {
      if (strides[v][ndim - 1] != 1) return false;
      for (int d = 0; d < ndim - 1; ++d) {
        if (strides[v][d] % n != 0) return false;
      }
    }
    return true;
  }
  /// Counts and steps in packs of n elements.
  void pack(Index n) {
    shape[ndim - 1] /= n;
    for (int v = 0; v < K; ++v) {
      for (int d = 0; d < ndim - 1; ++d) strides[v][d] /= n;
    }
  }

  int ndim = 0;
  Index shape[kMaxDims] = {}, strides[K][kMaxDims] = {};
};

/// The numbers of elements before and after `dim`.
struct Sides {
  Sides(const View& v, int dim) {
    for (int d = 0; d < v.ndim; ++d) (d < dim ? outer : inner) *= d == dim ? 1 : v.shape[d];
  }
  Index outer = 1, inner = 1;
};

__global__ void check_indices(Walk<1> walk, Index n, const Index* index, Index limit, FaultSink faults) {
  for (Index i = global_index(); i < n; i += global_stride()) check_index(faults, index[walk.at(i).v[0]], limit, i);
}

// Copies do not ask what they copy.

template <class T>
struct SelectArgs {
  Walk<2> others;  ///< out and in, without the dimension
  Index inner, count, limit;
  T* out;
  const T* in;
  const Index* index;
  Index out_step, in_step, index_step;
};

template <class T>
__global__ void select(SelectArgs<T> a, Index n, FaultSink faults) {
  for (Index i = global_index(); i < n; i += global_stride()) {
    const Index line = i / a.inner, outer = line / a.count, j = line - outer * a.count;
    const Index from = a.index[j * a.index_step];
    const auto at = a.others.at(outer * a.inner + (i - line * a.inner));
    T value{};
    if (check_index(faults, from, a.limit, j)) value = a.in[at.v[1] + from * a.in_step];
    a.out[at.v[0] + j * a.out_step] = value;
  }
}

template <class T>
void launch_select(const Scope& scope, const View& out, const View& in, int dim, const View& index, Index pack) {
  SelectArgs<T> a{{out.shape, out.ndim, {out.strides, in.strides}, dim},
                  Sides(out, dim).inner / pack,
                  out.shape[dim],
                  in.shape[dim],
                  out.as<T>(),
                  in.as<const T>(),
                  index.as<const Index>(),
                  out.strides[dim] / pack,
                  in.strides[dim] / pack,
                  index.strides[0]};
  if (pack > 1) a.others.pack(pack);
  const Index n = out.numel() / pack;
  launch(select<T>, blocks_for(n), kBlock, 0, scope.stream(), a, n, scope.faults());
}

/// Elements of out and in that can be copied 16 bytes at a time, or 1.
Index select_pack(const View& out, const View& in, int dim) {
  const Index pack = 16 / static_cast<Index>(size_of(out.dtype));
  const Walk<2> others(out.shape, out.ndim, {out.strides, in.strides}, dim);
  const bool fits = others.has_packs_of(pack) && Sides(out, dim).inner % pack == 0 && out.strides[dim] % pack == 0 &&
                    in.strides[dim] % pack == 0 && is_aligned(out.data) && is_aligned(in.data);
  return fits ? pack : 1;
}

template <class T>
__global__ void gather_elements(Walk<3> walk, Index n, T* out, const Index* index, const T* in, Index in_step,
                                Index limit, FaultSink faults) {
  for (Index i = global_index(); i < n; i += global_stride()) {
    const auto at = walk.at(i);
    const Index from = index[at.v[1]];
    T value{};
    if (check_index(faults, from, limit, i)) value = in[at.v[2] + from * in_step];
    out[at.v[0]] = value;
  }
}

/// Calls f with the tag of an unsigned type of the dtype's size.
template <class F>
void visit_size(DType dtype, F&& f) {
  switch (size_of(dtype)) {
    case 1: return f(TypeTag<std::uint8_t>{});
    case 4: return f(TypeTag<std::uint32_t>{});
    default: return f(TypeTag<std::uint64_t>{});
  }
}

// Sums. index_add is a scatter_add whose index is the same in every lane.

template <class T>
__device__ T sum_of(T a, T b) {
  if constexpr (std::is_same_v<T, bool>) {
    return a || b;
  } else {
    return static_cast<T>(a + b);
  }
}

struct AddArgs {
  View out, src, index;  ///< index has src's shape, with strides 0 where it repeats
  int dim;
  bool one_index;  ///< index_add: the index has the dimension only

  Index limit() const { return out.shape[dim]; }
  Index count() const { return src.shape[dim]; }
  Index lanes() const {
    const Sides s(src, dim);
    return s.outer * s.inner;
  }
};

struct LaneArgs {
  Walk<3> lanes;  ///< out, src and index, without the dimension
  Index count, limit, out_step, src_step, index_step;
  const Index* index;
  Index outer_position, step_position, inner, inner_position;  ///< of indices in their tensor
};

template <class T>
__global__ void add_along_lanes(LaneArgs a, Index n, T* out, const T* src, FaultSink faults) {
  for (Index lane = global_index(); lane < n; lane += global_stride()) {
    const auto at = a.lanes.at(lane);
    const Index outer = lane / a.inner;
    const Index position = outer * a.outer_position + (lane - outer * a.inner) * a.inner_position;
    for (Index j = 0; j < a.count; ++j) {
      const Index to = a.index[at.v[2] + j * a.index_step];
      if (!check_index(faults, to, a.limit, position + j * a.step_position)) continue;
      T& sum = out[at.v[0] + to * a.out_step];
      sum = sum_of(sum, src[at.v[1] + j * a.src_step]);
    }
  }
}

void launch_along_lanes(const Scope& scope, const AddArgs& a) {
  const Index inner = Sides(a.src, a.dim).inner;
  const LaneArgs args{{a.src.shape, a.src.ndim, {a.out.strides, a.src.strides, a.index.strides}, a.dim},
                      a.count(),
                      a.limit(),
                      a.out.strides[a.dim],
                      a.src.strides[a.dim],
                      a.index.strides[a.dim],
                      a.index.as<const Index>(),
                      a.one_index ? 0 : a.count() * inner,
                      a.one_index ? 1 : inner,
                      inner,
                      a.one_index ? 0 : 1};
  visit_dtype(a.out.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    launch(add_along_lanes<T>, blocks_for(a.lanes()), kBlock, 0, scope.stream(), args, a.lanes(), a.out.as<T>(),
           a.src.as<const T>(), scope.faults());
  });
}

/// The key of a source is the row-major position of its destination, or `bad`. Row-major: (outer, along, inner).
__global__ void make_keys(Walk<1> walk, Index n, const Index* index, Index count, Index limit, Index inner, SortKey bad,
                          SortKey* keys, FaultSink faults) {
  for (Index i = global_index(); i < n; i += global_stride()) {
    const Index to = index[walk.at(i).v[0]];
    const Index line = i / inner;
    const bool good = check_index(faults, to, limit, i);
    keys[i] = good ? static_cast<SortKey>((line / count * limit + to) * inner + (i - line * inner)) : bad;
  }
}

/// Destination `key` is the row of `out` at `to.at(key)`, source `place` the row of `src` at `from.at(place)`; the
/// elements of rows are at `columns`.
struct RunArgs {
  Walk<1> to, from;
  Walk<2> columns;
  Index width;  ///< of a row
  SortKey bad;
};

template <class T, int N>
__global__ void add_runs(RunArgs a, SortedKeys sorted, Index n, T* out, const T* src) {
  using Values = Pack<T, N>;
  constexpr int ahead = 8;
  const Index thread = global_index();
  Index i = thread / a.width;
  if (i >= n) return;
  const SortKey key = sorted.keys[i];
  if (key == a.bad || (i > 0 && sorted.keys[i - 1] == key)) return;

  const auto at = a.columns.at(thread - i * a.width);
  Values* to = reinterpret_cast<Values*>(out) + at.v[0] + a.to.at(key).v[0];
  const Values* from = reinterpret_cast<const Values*>(src) + at.v[1];
  Values sum = *to;
  const auto add = [&sum](const Values& addend) {
    for (int k = 0; k < N; ++k) sum.v[k] = sum_of(sum.v[k], addend.v[k]);
  };
  // Reads of several addends are under way at a time; the sum waits for each in turn.
  for (; i + ahead <= n && sorted.keys[i + ahead - 1] == key; i += ahead) {
    Values addends[ahead];
    for (int k = 0; k < ahead; ++k) addends[k] = from[a.from.at(sorted.places[i + k]).v[0]];
    for (int k = 0; k < ahead; ++k) add(addends[k]);
  }
  for (; i < n && sorted.keys[i] == key; ++i) add(from[a.from.at(sorted.places[i]).v[0]]);
  *to = sum;
}

template <class T, int N>
void launch_runs(const Scope& scope, RunArgs a, const SortedKeys& sorted, Index n, const AddArgs& add) {
  if (N > 1) {
    a.columns.pack(N);
    a.width /= N;
    for (Walk<1>* rows : {&a.to, &a.from}) {
      if (rows->ndim > 0) rows->strides[0][0] /= N;
    }
  }
  const Index blocks = (n * a.width + kBlock - 1) / kBlock;
  launch(add_runs<T, N>, static_cast<unsigned>(blocks), kBlock, 0, scope.stream(), a, sorted, n, add.out.as<T>(),
         add.src.as<const T>());
}

void add_sorted(Scope& scope, const AddArgs& a) {
  const Sides sides(a.src, a.dim);
  const Index inner = a.one_index ? 1 : sides.inner;
  const Index n = a.one_index ? a.count() : a.src.numel();
  const SortKey bad = static_cast<SortKey>(a.one_index ? a.limit() : a.out.numel());

  SortKey* keys = static_cast<SortKey*>(scope.scratch(sort_scratch(n)));
  const int one = a.one_index ? a.dim : 0, dims = a.one_index ? 1 : a.src.ndim;
  const Walk<1> indices(a.index.shape + one, dims, {a.index.strides + one});
  launch(make_keys, blocks_for(n), kBlock, 0, scope.stream(), indices, n, a.index.as<const Index>(), a.count(),
         a.limit(), inner, bad, keys, scope.faults());
  const SortedKeys sorted = sort_keys(scope.stream(), keys, n, bad);

  RunArgs run{{a.out.shape + one, dims, {a.out.strides + one}},
              {a.src.shape + one, dims, {a.src.strides + one}},
              {a.src.shape, a.one_index ? a.src.ndim : 0, {a.out.strides, a.src.strides}, a.dim},
              a.one_index ? a.lanes() : 1,
              bad};
  visit_dtype(a.out.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    if constexpr (sizeof(T) >= 4) {
      constexpr int pack = kPackSize<T>;
      if (run.columns.has_packs_of(pack) && a.out.strides[a.dim] % pack == 0 && a.src.strides[a.dim] % pack == 0 &&
          is_aligned(a.out.data) && is_aligned(a.src.data)) {
        return launch_runs<T, pack>(scope, run, sorted, n, a);
      }
    }
    launch_runs<T, 1>(scope, run, sorted, n, a);
  });
}

void add(Scope& scope, const AddArgs& a) {
  constexpr Index few = 32;             // sources in a lane
  constexpr Index enough = 1 << 16;     // lanes
  constexpr Index most = 0xffffffffll;  // keys
  if (a.lanes() == 0 || a.count() == 0) return;
  const Index n = a.one_index ? a.count() : a.src.numel(), keys = a.one_index ? a.limit() : a.out.numel();
  if (a.count() <= few || (!a.one_index && a.lanes() >= enough) || n >= most || keys >= most) {
    launch_along_lanes(scope, a);
  } else {
    add_sorted(scope, a);
  }
}

}  // namespace

void CudaBackend::index_select(Stream& stream, const View& out, const View& in, int dim, const View& index) const {
  Scope scope(stream, "index_select");
  if (out.numel() == 0) {
    launch(check_indices, blocks_for(index.numel()), kBlock, 0, scope.stream(),
           Walk<1>(index.shape, 1, {index.strides}), index.numel(), index.as<const Index>(), in.shape[dim],
           scope.faults());
    return;
  }
  const Index pack = select_pack(out, in, dim);
  if (pack > 1) return launch_select<uint4>(scope, out, in, dim, index, pack);
  visit_size(out.dtype, [&](auto tag) { launch_select<typename decltype(tag)::type>(scope, out, in, dim, index, 1); });
}

void CudaBackend::index_add(Stream& stream, const View& out, int dim, const View& index, const View& src) const {
  Scope scope(stream, "index_add");
  Index strides[kMaxDims] = {};
  strides[dim] = index.strides[0];
  const AddArgs args{out, src, {index.data, src.shape, strides, src.ndim, index.dtype}, dim, true};
  if (args.lanes() == 0) {
    launch(check_indices, blocks_for(index.numel()), kBlock, 0, scope.stream(),
           Walk<1>(index.shape, 1, {index.strides}), index.numel(), index.as<const Index>(), out.shape[dim],
           scope.faults());
  }
  add(scope, args);
}

void CudaBackend::gather(Stream& stream, const View& out, const View& in, int dim, const View& index) const {
  Scope scope(stream, "gather");
  Index in_strides[kMaxDims] = {};
  for (int d = 0; d < in.ndim; ++d) in_strides[d] = d == dim ? 0 : in.strides[d];  // the index says where
  const Index n = out.numel();
  const Walk<3> walk(out.shape, out.ndim, {out.strides, index.strides, in_strides});
  visit_size(out.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    launch(gather_elements<T>, blocks_for(n), kBlock, 0, scope.stream(), walk, n, out.as<T>(), index.as<const Index>(),
           in.as<const T>(), in.strides[dim], in.shape[dim], scope.faults());
  });
}

void CudaBackend::scatter_add(Stream& stream, const View& out, int dim, const View& index, const View& src) const {
  Scope scope(stream, "scatter_add");
  add(scope, {out, src, index, dim, false});
}

}  // namespace tandem::kernels::cuda
