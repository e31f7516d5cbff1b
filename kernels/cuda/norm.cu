// Batch normalisation over channels and layer normalisation over rows, with their gradients.
//
//   y = (x - mean) invstd w + b
//   gx = invstd (h - mean(h) - (x - mean) invstd^2 mean(h (x - mean))),  h = g w
//   gw = sum of g (x - mean) invstd,  gb = sum of g
//
// Sums over a channel: x (and g) are read once per pass, in pieces when there are few channels; a second kernel
// combines the pieces. Statistics take two passes, the second about the rough mean of the first. The maps then read x
// (and g) once and write once. A row of layer normalisation is taken by a warp or a block, and read once if it fits
// their registers. Sums run in T over a few elements and in double over these, in an order that depends on the shape
// and on alignment only.

#include "cuda_backend.h"
#include "rows.cuh"

namespace tandem::kernels::cuda {
namespace {

struct Pair {
  double first, second;
};

__device__ Pair operator+(const Pair& a, const Pair& b) { return {a.first + b.first, a.second + b.second}; }

/// Mean and biased variance from sums about `shift`.
template <class T>
__device__ void write_moments(const Pair& sums, double count, T shift, T& mean, T& var) {
  const double offset = sums.first / count;
  const double spread = sums.second / count - offset * offset;
  mean = static_cast<T>(static_cast<double>(shift) + offset);
  var = static_cast<T>(spread < 0 ? 0 : spread);
}

// What is summed over a channel: per element add(x, g, local, first, second), with a local(row, channel) that a row or
// channel shares, and finish(channel, sums) at the end.

/// d and d^2, with d = x - shift.
template <class T>
struct Moments {
  static constexpr bool kGradient = false;
  double count;
  bool rough;  ///< only the mean, about 0
  T *mean, *var;

  __device__ T local(std::int64_t, std::int64_t channel) const { return rough ? T(0) : mean[channel]; }
  template <class A>
  __device__ void add(T x, T, T shift, A& first, A& second) const {
    const A d = static_cast<A>(x - shift);
    first += d;
    second += d * d;
  }
  __device__ void finish(std::int64_t channel, const Pair& sums) const {
    if (rough) {
      mean[channel] = static_cast<T>(sums.first / count);
    } else {
      write_moments(sums, count, mean[channel], mean[channel], var[channel]);
    }
  }
};

/// g and g (x - mean), for batch normalisation.
template <class T>
struct ChannelGradient {
  static constexpr bool kGradient = true;
  double count;
  const T *mean, *invstd;
  T *gw, *gb, *offset, *slope;  ///< any may be null

  __device__ T local(std::int64_t, std::int64_t channel) const { return mean[channel]; }
  template <class A>
  __device__ void add(T x, T g, T center, A& first, A& second) const {
    first += static_cast<A>(g);
    second += static_cast<A>(g) * static_cast<A>(x - center);
  }
  __device__ void finish(std::int64_t channel, const Pair& sums) const {
    const double inv = static_cast<double>(invstd[channel]);
    if (gw != nullptr) gw[channel] = static_cast<T>(sums.second * inv);
    if (gb != nullptr) gb[channel] = static_cast<T>(sums.first);
    if (offset != nullptr) {
      offset[channel] = static_cast<T>(sums.first / count);
      slope[channel] = static_cast<T>(sums.second * inv * inv / count);
    }
  }
};

/// g and g (x - mean) invstd, for layer normalisation.
template <class T>
struct RowGradient {
  static constexpr bool kGradient = true;
  const T *mean, *invstd;
  T *gw, *gb;  ///< either may be null

  struct Local {
    T mean, scale;
  };
  __device__ Local local(std::int64_t row, std::int64_t) const { return {mean[row], invstd[row]}; }
  template <class A>
  __device__ void add(T x, T g, const Local& at, A& first, A& second) const {
    first += static_cast<A>(g);
    second += static_cast<A>(g * ((x - at.mean) * at.scale));
  }
  __device__ void finish(std::int64_t channel, const Pair& sums) const {
    if (gw != nullptr) gw[channel] = static_cast<T>(sums.second);
    if (gb != nullptr) gb[channel] = static_cast<T>(sums.first);
  }
};

/// How the sums over channels of x (n, c, inner) are shared out: channels or strips of them by blockIdx.x, pieces of
/// the units by blockIdx.y. A unit is a row, or where inner > 1 a stretch of a plane.
struct ChannelShape {
  std::int64_t n, c, inner;
  int lanes;  ///< neighbours in memory that threads take: of a stretch, or of a strip of channels
  bool packed;
  std::int64_t stretch;  ///< a plane is cut into so long ones, the last perhaps empty, which makes 2^cuts of it
  int cuts;
  std::int64_t units, units_per_piece;
  Pair* partials;  ///< (channels, pieces), or null where there is one piece
};

template <class F>
__device__ void finish_piece(const F& f, const ChannelShape& s, std::int64_t channel, const Pair& sums) {
  if (s.partials == nullptr) {
    f.finish(channel, sums);
  } else {
    s.partials[channel * gridDim.y + blockIdx.y] = sums;
  }
}

template <class T, class F>
__global__ void __launch_bounds__(kBlock, 3) plane_sums(const F f, const ChannelShape s, const T* x, const T* g) {
  constexpr int per = kPackSize<T>;
  const int lane = static_cast<int>(threadIdx.x) % s.lanes, first_unit = static_cast<int>(threadIdx.x) / s.lanes;
  const int units_at_once = kBlock / s.lanes;
  const std::int64_t begin = blockIdx.y * s.units_per_piece;
  const std::int64_t end = s.units - begin < s.units_per_piece ? s.units : begin + s.units_per_piece;
  for (std::int64_t channel = blockIdx.x; channel < s.c; channel += gridDim.x) {
    const auto local = f.local(0, channel);
    Pair own{0, 0};
    for (std::int64_t unit = begin + first_unit; unit < end; unit += units_at_once) {
      const std::int64_t image = unit >> s.cuts, first = (unit - (image << s.cuts)) * s.stretch;
      const std::int64_t at = (image * s.c + channel) * s.inner + first;
      const std::int64_t n = s.inner - first < s.stretch ? s.inner - first : s.stretch;
      const std::int64_t packs = s.packed && n > 0 ? n / per : 0;
      TANDEM_UNROLL_BY(4)
      for (std::int64_t i = lane; i < packs; i += s.lanes) {
        const auto xs = reinterpret_cast<const Pack<T, per>*>(x + at)[i];
        auto gs = xs;
        if constexpr (F::kGradient) gs = reinterpret_cast<const Pack<T, per>*>(g + at)[i];
        T a = 0, b = 0;
        TANDEM_UNROLL
        for (int j = 0; j < per; ++j) f.add(xs.v[j], gs.v[j], local, a, b);
        own.first += static_cast<double>(a);
        own.second += static_cast<double>(b);
      }
      TANDEM_UNROLL_BY(4)
      for (std::int64_t i = packs * per + lane; i < n; i += s.lanes) {
        f.add(x[at + i], F::kGradient ? g[at + i] : T(0), local, own.first, own.second);
      }
    }
    const auto add = [](double a, double b) { return a + b; };
    const Pair sums{block_reduce(own.first, 0.0, add), block_reduce(own.second, 0.0, add)};
    if (threadIdx.x == 0) finish_piece(f, s, channel, sums);
  }
}

template <class T, class F>
__global__ void __launch_bounds__(kBlock, 4) column_sums(const F f, const ChannelShape s, const T* x, const T* g) {
  __shared__ Pair sums[kBlock];
  const int t = static_cast<int>(threadIdx.x), lane = t % s.lanes, y = t / s.lanes, height = kBlock / s.lanes;
  const std::int64_t begin = blockIdx.y * s.units_per_piece;
  const std::int64_t end = s.units - begin < s.units_per_piece ? s.units : begin + s.units_per_piece;
  for (std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * s.lanes; first < s.c;
       first += static_cast<std::int64_t>(gridDim.x) * s.lanes) {
    const std::int64_t channel = first + lane;
    Pair own{0, 0};
    if (channel < s.c) {
      TANDEM_UNROLL_BY(4)
      for (std::int64_t row = begin + y; row < end; row += height) {
        const std::int64_t at = row * s.c + channel;
        f.add(x[at], F::kGradient ? g[at] : T(0), f.local(row, channel), own.first, own.second);
      }
    }
    sums[t] = own;
    __syncthreads();
    for (int half = height / 2; half > 0; half /= 2) {
      if (y < half) sums[t] = sums[t] + sums[t + half * s.lanes];
      __syncthreads();
    }
    if (y == 0 && channel < s.c) finish_piece(f, s, channel, sums[t]);
  }
}

/// Combines the pieces of every channel, a warp for each.
template <class F>
__global__ void __launch_bounds__(kBlock) finish_sums(const F f, const ChannelShape s, const std::int64_t pieces) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  for (std::int64_t channel = global_index() / kWarp; channel < s.c; channel += global_stride() / kWarp) {
    Pair own{0, 0};
    for (std::int64_t i = lane; i < pieces; i += kWarp) own = own + s.partials[channel * pieces + i];
    const auto add = [](double a, double b) { return a + b; };
    const Pair sums{warp_reduce(own.first, add), warp_reduce(own.second, add)};
    if (lane == 0) f.finish(channel, sums);
  }
}

/// The sums over the channels of x (n, c, inner): one plan for several passes.
class ChannelSums {
 public:
  /// `packed`: planes may be read in packs of `per` elements.
  ChannelSums(std::int64_t n, std::int64_t c, std::int64_t inner, bool packed, int per) {
    const bool columns = inner == 1;
    s_ = {n, c, inner, 1, packed, inner, 0, n, 1, nullptr};
    s_.lanes = columns ? power_of_two_for(c, kWarp) : 1;
    blocks_ = columns ? ceil_div(c, s_.lanes) : c;
    const std::int64_t terms = n * inner;
    if (terms == 0 || c == 0) {
      s_.units = 0;
      return;
    }
    pieces_ = pieces_for(blocks_, terms * s_.lanes);
    if (!columns) {
      s_.cuts = shift_for(ceil_div(pieces_, n));
      if (s_.cuts > 0) s_.stretch = ceil_div(ceil_div(inner, std::int64_t{1} << s_.cuts), per) * per;
      s_.lanes = power_of_two_for(packed ? ceil_div(s_.stretch, per) : s_.stretch, kBlock);
    }
    s_.units = n << s_.cuts;
    s_.units_per_piece = ceil_div(s_.units, pieces_);
    pieces_ = ceil_div(s_.units, s_.units_per_piece);
  }

  std::size_t scratch_bytes() const {
    return pieces_ > 1 ? static_cast<std::size_t>(s_.c * pieces_) * sizeof(Pair) : 0;
  }
  /// `scratch` has scratch_bytes().
  template <class T, class F>
  void run(cudaStream_t stream, void* scratch, const F& f, const T* x, const T* g) const {
    ChannelShape s = s_;
    if (pieces_ > 1) s.partials = static_cast<Pair*>(scratch);
    const dim3 grid(blocks_for(blocks_, 1), static_cast<unsigned>(pieces_));
    if (s.inner == 1) {
      launch(column_sums<T, F>, grid, dim3(kBlock), 0, stream, f, s, x, g);
    } else if constexpr (!std::is_same_v<F, RowGradient<T>>) {
      launch(plane_sums<T, F>, grid, dim3(kBlock), 0, stream, f, s, x, g);
    }
    if (pieces_ > 1)
      launch(finish_sums<F>, dim3(blocks_for(s.c, kBlock / kWarp)), dim3(kBlock), 0, stream, f, s, pieces_);
  }

 private:
  ChannelShape s_;
  std::int64_t blocks_, pieces_ = 1;
};

// Elementwise maps of x (n, c, inner): value(local, x, g), with a local(channel).

template <class T>
struct Normalise {
  static constexpr bool kGradient = false;
  const T *mean, *invstd, *w, *b;  ///< w and b may be null

  struct Local {
    T mean, scale, offset;
  };
  __device__ Local local(std::int64_t channel) const {
    return {mean[channel], w != nullptr ? invstd[channel] * w[channel] : invstd[channel],
            b != nullptr ? b[channel] : T(0)};
  }
  static __device__ T value(const Local& at, T x, T) { return (x - at.mean) * at.scale + at.offset; }
};

template <class T>
struct NormaliseBackward {
  static constexpr bool kGradient = true;
  const T *mean, *invstd, *w, *offset, *slope;  ///< w may be null, and the last two together

  struct Local {
    T mean, scale, offset, slope;
  };
  __device__ Local local(std::int64_t channel) const {
    const bool training = offset != nullptr;
    return {mean[channel], w != nullptr ? invstd[channel] * w[channel] : invstd[channel],
            training ? offset[channel] : T(0), training ? slope[channel] : T(0)};
  }
  static __device__ T value(const Local& at, T x, T g) { return at.scale * (g - at.offset - (x - at.mean) * at.slope); }
};

/// `lanes` threads of gridDim.y blocks to a plane.
template <class T, class F>
__global__ void __launch_bounds__(kBlock, 3)
    map_planes(const F f, std::int64_t planes, std::int64_t c, std::int64_t inner, int lanes, bool packed, const T* x,
               const T* g, T* out) {
  constexpr int per = kPackSize<T>;
  const std::int64_t first = blockIdx.y * lanes + threadIdx.x % lanes,
                     step = static_cast<std::int64_t>(gridDim.y) * lanes;
  for (std::int64_t plane = global_index() / lanes; plane < planes; plane += global_stride() / lanes) {
    const auto local = f.local(plane % c);
    const std::int64_t at = plane * inner, packs = packed ? inner / per : 0;
    TANDEM_UNROLL_BY(4)
    for (std::int64_t i = first; i < packs; i += step) {
      auto v = reinterpret_cast<const Pack<T, per>*>(x + at)[i];
      auto gs = v;
      if constexpr (F::kGradient) gs = reinterpret_cast<const Pack<T, per>*>(g + at)[i];
      TANDEM_UNROLL
      for (int j = 0; j < per; ++j) v.v[j] = F::value(local, v.v[j], gs.v[j]);
      reinterpret_cast<Pack<T, per>*>(out + at)[i] = v;
    }
    TANDEM_UNROLL_BY(4)
    for (std::int64_t i = at + packs * per + first; i < at + inner; i += step) {
      out[i] = F::value(local, x[i], F::kGradient ? g[i] : T(0));
    }
  }
}

/// x is (n, c); a thread stays in its column.
template <class T, class F>
__global__ void __launch_bounds__(kBlock)
    map_columns(const F f, std::int64_t n, std::int64_t c, int lanes, const T* x, const T* g, T* out) {
  const int lane = static_cast<int>(threadIdx.x) % lanes, y = static_cast<int>(threadIdx.x) / lanes;
  const std::int64_t channel = static_cast<std::int64_t>(blockIdx.x) * lanes + lane;
  if (channel >= c) return;
  const auto local = f.local(channel);
  const std::int64_t height = kBlock / lanes, step = gridDim.y * height;
  TANDEM_UNROLL_BY(4)
  for (std::int64_t row = blockIdx.y * height + y; row < n; row += step) {
    const std::int64_t at = row * c + channel;
    out[at] = F::value(local, x[at], F::kGradient ? g[at] : T(0));
  }
}

template <class T, class F>
void map_channels(cudaStream_t stream, const F& f, const View& shape, const T* x, const T* g, T* out) {
  const std::int64_t n = shape.shape[0], c = shape.shape[1], inner = shape.shape[2];
  if (n * c * inner == 0) return;
  if (inner == 1) {
    const int lanes = power_of_two_for(c, kWarp), height = kBlock / lanes;
    constexpr std::int64_t rows_each = 4;
    const std::int64_t strips = ceil_div(c, lanes);
    const dim3 grid(static_cast<unsigned>(strips), blocks_for(n, height * rows_each));
    launch(map_columns<T, F>, grid, dim3(kBlock), 0, stream, f, n, c, lanes, x, g, out);
  } else {
    const bool packed = rows_packed<T>(inner, x, g, out);
    const std::int64_t loads = packed ? inner / kPackSize<T> : inner;
    const int few = power_of_two_for(loads, kWarp), some = power_of_two_for(ceil_div(loads, 4), kBlock);
    const int lanes = few > some ? few : some;
    const unsigned blocks = blocks_for(n * c, kBlock / lanes);
    const std::int64_t wanted = kEnoughBlocks / blocks, most = ceil_div(loads, 4 * lanes);
    const std::int64_t shares = wanted < most ? wanted : most;
    launch(map_planes<T, F>, dim3(blocks, static_cast<unsigned>(shares > 1 ? shares : 1)), dim3(kBlock), 0, stream, f,
           n * c, c, inner, lanes, packed, x, g, out);
  }
}

template <class T, int Threads>
__global__ void __launch_bounds__(RowGroup<Threads>::kThreads, RowGroup<Threads>::kResident)
    layer_norm_rows(std::int64_t n, std::int64_t c, const T* x, const T* w, const T* b, double eps, T* out, T* mean,
                    T* invstd, bool packed) {
  using Tile = RowTile<T, Threads>;
  using Group = RowGroup<Threads>;
  const double count = static_cast<double>(c);
  for (std::int64_t row = Group::first(); row < n; row += Group::step()) {
    const T* xs = x + row * c;
    const bool whole = c <= Tile::kSize;
    Tile tile;
    double rough = 0;
    for (std::int64_t base = 0; base < c; base += Tile::kSize) {
      tile.load(xs + base, Tile::count(c, base), packed, T(0));
      T part = 0;
      tile.each([&](T& v) { part += v; });
      rough += static_cast<double>(part);
    }
    const T shift = static_cast<T>(Group::sum(rough) / count);
    Pair own{0, 0};
    for (std::int64_t base = 0; base < c; base += Tile::kSize) {
      if (!whole) tile.load(xs + base, Tile::count(c, base), packed, shift);
      T first = 0, second = 0;
      tile.each_of(Tile::count(c, base), packed, [&](T v) {
        const T d = v - shift;
        first += d;
        second += d * d;
      });
      own = own + Pair{static_cast<double>(first), static_cast<double>(second)};
    }
    T m, var;
    write_moments({Group::sum(own.first), Group::sum(own.second)}, count, shift, m, var);
    const T scale = static_cast<T>(1 / math::sqrt(static_cast<double>(var) + eps));
    if (Group::lane() == 0) {
      mean[row] = m;
      invstd[row] = scale;
    }
    for (std::int64_t base = 0; base < c; base += Tile::kSize) {
      const int left = Tile::count(c, base);
      TANDEM_UNROLL
      for (int k = 0; k < Tile::kPacks; ++k) {
        auto pack = whole ? tile.v[k] : Tile::load_pack(xs + base, left, packed, k, T(0));
        TANDEM_UNROLL
        for (int j = 0; j < Tile::kPer; ++j) pack.v[j] = (pack.v[j] - m) * scale;
        if (w != nullptr) {
          const auto ws = Tile::load_pack(w + base, left, packed, k, T(0));
          TANDEM_UNROLL
          for (int j = 0; j < Tile::kPer; ++j) pack.v[j] *= ws.v[j];
        }
        if (b != nullptr) {
          const auto bs = Tile::load_pack(b + base, left, packed, k, T(0));
          TANDEM_UNROLL
          for (int j = 0; j < Tile::kPer; ++j) pack.v[j] += bs.v[j];
        }
        Tile::store_pack(out + row * c + base, left, packed, k, pack);
      }
    }
  }
}

/// Leaves g w, or g where w is null, in `h` and x - m in `d`, both 0 beyond the row.
template <class T, int Threads>
__device__ void load_gradient(RowTile<T, Threads>& h, RowTile<T, Threads>& d, const T* g, const T* x, const T* w, T m,
                              int n, bool packed) {
  using Tile = RowTile<T, Threads>;
  h.load(g, n, packed, T(0));
  d.load(x, n, packed, m);
  d.each([&](T& v) { v -= m; });
  if (w == nullptr) return;
  TANDEM_UNROLL
  for (int k = 0; k < Tile::kPacks; ++k) {
    const auto ws = Tile::load_pack(w, n, packed, k, T(0));
    TANDEM_UNROLL
    for (int j = 0; j < Tile::kPer; ++j) h.v[k].v[j] *= ws.v[j];
  }
}

template <class T, int Threads>
__global__ void __launch_bounds__(RowGroup<Threads>::kThreads, RowGroup<Threads>::kResident)
    layer_norm_backward_rows(std::int64_t n, std::int64_t c, const T* g, const T* x, const T* mean, const T* invstd,
                             const T* w, T* gx, bool packed) {
  using Tile = RowTile<T, Threads>;
  using Group = RowGroup<Threads>;
  const double count = static_cast<double>(c);
  for (std::int64_t row = Group::first(); row < n; row += Group::step()) {
    const std::int64_t at = row * c;
    const bool whole = c <= Tile::kSize;
    const T m = mean[row], scale = invstd[row];
    Tile h, d;
    Pair own{0, 0};
    for (std::int64_t base = 0; base < c; base += Tile::kSize) {
      load_gradient(h, d, g + at + base, x + at + base, w == nullptr ? w : w + base, m, Tile::count(c, base), packed);
      T first = 0, second = 0;
      Tile::pairs(h, d, [&](T& hv, T dv) {
        first += hv;
        second += hv * dv;
      });
      own = own + Pair{static_cast<double>(first), static_cast<double>(second)};
    }
    const Pair sums{Group::sum(own.first), Group::sum(own.second)};
    const double inv = static_cast<double>(scale);
    const T offset = static_cast<T>(sums.first / count);
    const T slope = static_cast<T>(sums.second * inv * inv / count);
    for (std::int64_t base = 0; base < c; base += Tile::kSize) {
      const int left = Tile::count(c, base);
      if (!whole) load_gradient(h, d, g + at + base, x + at + base, w == nullptr ? w : w + base, m, left, packed);
      Tile::pairs(h, d, [&](T& hv, T dv) { hv = scale * (hv - offset - dv * slope); });
      h.store(gx + at + base, left, packed);
    }
  }
}

}  // namespace

void CudaBackend::channel_stats(Stream& stream, const View& mean, const View& var, const View& x) const {
  Scope scope(stream, "channel_stats");
  const std::int64_t n = x.shape[0], c = x.shape[1], inner = x.shape[2];
  visit_floating(x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const T* xs = x.as<const T>();
    const ChannelSums sums(n, c, inner, rows_packed<T>(inner, xs), kPackSize<T>);
    void* scratch = sums.scratch_bytes() > 0 ? scope.scratch(sums.scratch_bytes()) : nullptr;
    for (const bool rough : {true, false}) {
      const Moments<T> moments{static_cast<double>(n * inner), rough, mean.as<T>(), var.as<T>()};
      sums.run<T>(scope.stream(), scratch, moments, xs, nullptr);
    }
  });
}

void CudaBackend::batch_norm(Stream& stream, const View& out, const View& x, const View& mean, const View& invstd,
                             const View& w, const View& b) const {
  Scope scope(stream, "batch_norm");
  visit_floating(x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const Normalise<T> map{mean.as<const T>(), invstd.as<const T>(), w.as<const T>(), b.as<const T>()};
    map_channels<T>(scope.stream(), map, x, x.as<const T>(), nullptr, out.as<T>());
  });
}

void CudaBackend::batch_norm_backward(Stream& stream, const View& gx, const View& gw, const View& gb, const View& g,
                                      const View& x, const View& mean, const View& invstd, const View& w,
                                      bool training) const {
  Scope scope(stream, "batch_norm_backward");
  const std::int64_t n = x.shape[0], c = x.shape[1], inner = x.shape[2];
  visit_floating(x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const T *xs = x.as<const T>(), *gs = g.as<const T>();
    const bool means = training && gx.data != nullptr;
    const T *offset = nullptr, *slope = nullptr;
    if (means || gw.data != nullptr || gb.data != nullptr) {
      const ChannelSums sums(n, c, inner, rows_packed<T>(inner, xs, gs), kPackSize<T>);
      const std::size_t bytes = sums.scratch_bytes(), more = means ? 2 * static_cast<std::size_t>(c) * sizeof(T) : 0;
      auto* scratch = bytes + more > 0 ? static_cast<char*>(scope.scratch(bytes + more)) : nullptr;
      T* own = means ? reinterpret_cast<T*>(scratch + bytes) : nullptr;
      const ChannelGradient<T> f{
          static_cast<double>(n * inner), mean.as<const T>(), invstd.as<const T>(), gw.as<T>(), gb.as<T>(), own,
          means ? own + c : nullptr};
      sums.run<T>(scope.stream(), scratch, f, xs, gs);
      offset = f.offset;
      slope = f.slope;
    }
    if (gx.data == nullptr) return;
    const NormaliseBackward<T> map{mean.as<const T>(), invstd.as<const T>(), w.as<const T>(), offset, slope};
    map_channels<T>(scope.stream(), map, x, xs, gs, gx.as<T>());
  });
}

void CudaBackend::layer_norm(Stream& stream, const View& out, const View& mean, const View& invstd, const View& x,
                             const View& w, const View& b, double eps) const {
  Scope scope(stream, "layer_norm");
  const std::int64_t n = x.shape[0], c = x.shape[1];
  visit_floating(x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const T *xs = x.as<const T>(), *ws = w.as<const T>(), *bs = b.as<const T>();
    T* y = out.as<T>();
    launch_rows<T>(layer_norm_rows<T, kRowWarp>, layer_norm_rows<T, kRowBlock>, n, c, scope.stream(), n, c, xs, ws, bs,
                   eps, y, mean.as<T>(), invstd.as<T>(), rows_packed<T>(c, xs, ws, bs, y));
  });
}

void CudaBackend::layer_norm_backward(Stream& stream, const View& gx, const View& gw, const View& gb, const View& g,
                                      const View& x, const View& mean, const View& invstd, const View& w) const {
  Scope scope(stream, "layer_norm_backward");
  const std::int64_t n = x.shape[0], c = x.shape[1];
  visit_floating(x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const T *gs = g.as<const T>(), *xs = x.as<const T>(), *means = mean.as<const T>(), *scales = invstd.as<const T>();
    const T* ws = w.as<const T>();
    T* out = gx.as<T>();
    if (out != nullptr && c > 0) {
      launch_rows<T>(layer_norm_backward_rows<T, kRowWarp>, layer_norm_backward_rows<T, kRowBlock>, n, c,
                     scope.stream(), n, c, gs, xs, means, scales, ws, out, rows_packed<T>(c, gs, xs, ws, out));
    }
    if (gw.data == nullptr && gb.data == nullptr) return;
    const ChannelSums sums(n, c, 1, false, 1);
    void* scratch = sums.scratch_bytes() > 0 ? scope.scratch(sums.scratch_bytes()) : nullptr;
    sums.run<T>(scope.stream(), scratch, RowGradient<T>{means, scales, gw.as<T>(), gb.as<T>()}, xs, gs);
  });
}

}  // namespace tandem::kernels::cuda
