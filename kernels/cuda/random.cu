// Random numbers: one thread per Philox block, which makes 2 or 4 neighbouring elements, written at once.
//
// About 100 integer operations per block, so that memory limits float32 draws: one write per element; dropout reads and
// writes an element and writes a byte. Compiled without fusing a * b + c, for the bits of the CPU.

#include "../math/convert.h"
#include "../math/philox.h"
#include "common.cuh"
#include "cuda_backend.h"

namespace tandem::kernels::cuda {
namespace {

using Index = std::int64_t;

/// The bits of the i-th number of type T that a block makes.
template <class T>
__device__ RandomBits<T> bits_at(const PhiloxBlock& block, int i) {
  if constexpr (std::is_same_v<T, float>) {
    return block.word[i];
  } else {
    return join_words(block.word[2 * i], block.word[2 * i + 1]);
  }
}

/// What the kernel `draw` makes of a block: `per_block` elements.
template <class T>
struct Uniform {
  static constexpr int per_block = kPackSize<T>;
  T lo, hi;
  __device__ Pack<T, per_block> operator()(const PhiloxBlock& block) const {
    Pack<T, per_block> out;
    for (int i = 0; i < per_block; ++i) out.v[i] = uniform_between<T>(bits_at<T>(block, i), lo, hi);
    return out;
  }
};
template <class T>
struct Normal {
  static constexpr int per_block = kPackSize<T>;
  T mean, std;
  __device__ Pack<T, per_block> operator()(const PhiloxBlock& block) const {
    Pack<T, per_block> out;
    for (int i = 0; i < per_block; i += 2) {
      const NormalPair<T> pair = normal_pair<T>(bits_at<T>(block, i), bits_at<T>(block, i + 1));
      out.v[i] = mean + std * pair.first;
      out.v[i + 1] = mean + std * pair.second;
    }
    return out;
  }
};
template <class T>
struct RandInt {
  static constexpr int per_block = 2;
  Index lo, hi;
  __device__ Pack<T, per_block> operator()(const PhiloxBlock& block) const {
    Pack<T, per_block> out;
    for (int i = 0; i < per_block; ++i) {
      out.v[i] = math::convert<T>(integer_between(bits_at<double>(block, i), lo, hi));
    }
    return out;
  }
};

/// `aligned`: whole blocks are written at once, for which `out` is aligned and nothing skipped.
template <class T, class Make>
__global__ void draw(T* out, Index n, PhiloxState state, Make make, bool aligned) {
  constexpr int per_block = Make::per_block;
  for (Index b = global_index(); b * per_block < state.skip + n; b += global_stride()) {
    const auto made = make(philox(state.seed, state.stream, state.offset + static_cast<std::uint64_t>(b)));
    const Index first = b * per_block - state.skip;
    if (aligned && n - first >= per_block) {
      *reinterpret_cast<Pack<T, per_block>*>(out + first) = made;
    } else {
      for (int i = 0; i < per_block; ++i) {
        if (first + i >= 0 && first + i < n) out[first + i] = made.v[i];
      }
    }
  }
}

template <class T, class Make>
void launch_draw(const Scope& scope, const View& out, const PhiloxState& state, const Make& make) {
  const Index n = out.numel(), blocks = (state.skip + n + Make::per_block - 1) / Make::per_block;
  launch(draw<T, Make>, blocks_for(blocks), kBlock, 0, scope.stream(), out.as<T>(), n, state, make,
         state.skip == 0 && is_aligned(out.data, Make::per_block * sizeof(T)));
}

template <class T>
__global__ void drop(T* out, std::uint8_t* mask, const T* in, Index n, PhiloxState state, std::uint32_t threshold,
                     std::uint8_t keep, T scale, bool aligned) {
  for (Index b = global_index(); 4 * b < state.skip + n; b += global_stride()) {
    const PhiloxBlock block = philox(state.seed, state.stream, state.offset + static_cast<std::uint64_t>(b));
    const Index first = 4 * b - state.skip;
    if (aligned && n - first >= 4) {
      Pack<T, 4> values = *reinterpret_cast<const Pack<T, 4>*>(in + first);
      Pack<std::uint8_t, 4> kept;
      for (int i = 0; i < 4; ++i) {
        const bool keeps = block.word[i] >= threshold;
        const T scaled = values.v[i] * scale;
        kept.v[i] = keeps ? keep : std::uint8_t{0};
        values.v[i] = keeps ? scaled : T(0);
      }
      *reinterpret_cast<Pack<T, 4>*>(out + first) = values;
      *reinterpret_cast<Pack<std::uint8_t, 4>*>(mask + first) = kept;
    } else {
      for (int i = 0; i < 4; ++i) {
        if (first + i < 0 || first + i >= n) continue;
        const bool keeps = block.word[i] >= threshold;
        const T scaled = in[first + i] * scale;
        mask[first + i] = keeps ? keep : std::uint8_t{0};
        out[first + i] = keeps ? scaled : T(0);
      }
    }
  }
}

}  // namespace

void CudaBackend::uniform(Stream& stream, const View& out, PhiloxState state, double lo, double hi) const {
  Scope scope(stream, "uniform");
  visit_floating(out.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    launch_draw<T>(scope, out, state, Uniform<T>{static_cast<T>(lo), static_cast<T>(hi)});
  });
}

void CudaBackend::normal(Stream& stream, const View& out, PhiloxState state, double mean, double std) const {
  Scope scope(stream, "normal");
  visit_floating(out.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    launch_draw<T>(scope, out, state, Normal<T>{static_cast<T>(mean), static_cast<T>(std)});
  });
}

void CudaBackend::randint(Stream& stream, const View& out, PhiloxState state, std::int64_t lo, std::int64_t hi) const {
  Scope scope(stream, "randint");
  visit_dtype(out.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    launch_draw<T>(scope, out, state, RandInt<T>{lo, hi});
  });
}

void CudaBackend::dropout(Stream& stream, const View& out, const View& mask, const View& in, PhiloxState state,
                          double p) const {
  Scope scope(stream, "dropout");
  // With p = 1 every word is below the threshold but the largest, and that one is kept as zero.
  const std::uint32_t threshold = p < 1 ? static_cast<std::uint32_t>(p * 0x1p32) : ~0u;
  const Index n = out.numel();
  visit_floating(out.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const bool aligned = state.skip == 0 && is_aligned(out.data, 4 * sizeof(T)) && is_aligned(in.data, 4 * sizeof(T)) &&
                         is_aligned(mask.data, 4);
    launch(drop<T>, blocks_for((state.skip + n + 3) / 4), kBlock, 0, scope.stream(), out.as<T>(),
           mask.as<std::uint8_t>(), in.as<const T>(), n, state, threshold, static_cast<std::uint8_t>(p < 1 ? 1 : 0),
           static_cast<T>(p < 1 ? 1 / (1 - p) : 0), aligned);
  });
}

}  // namespace tandem::kernels::cuda
