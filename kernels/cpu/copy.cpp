// Data movement: fill, copy with conversion, broadcasting and transposition, and ranges.

#include <cstring>

#include "../elementwise_plan.h"
#include "../math/convert.h"
#include "../math/integer.h"
#include "cpu_backend.h"
#include "isa.h"
#include "parallel.h"
#include "rows.h"

#define TANDEM_ISA_SOURCE "copy.inl"
#include "each_isa.h"

namespace tandem::kernels::cpu {
namespace {

/// Transpositions go by tiles of that many steps along the output's rows and along the input's.
constexpr std::int64_t kTileOut = 64, kTileIn = 32;

template <class T>
void copy_row(std::int64_t n, T* out, std::int64_t out_step, const T* in, std::int64_t in_step) {
  if (out_step == 1 && in_step == 1) {
    std::memcpy(out, in, static_cast<std::size_t>(n) * sizeof(T));
  } else if (out_step == 1 && in_step == 0) {
    const T value = *in;
    for (std::int64_t i = 0; i < n; ++i) out[i] = value;
  } else {
    for (std::int64_t i = 0; i < n; ++i) out[i * out_step] = in[i * in_step];
  }
}

/// The dimension of the plan in which the input is adjacent, if that is not the innermost one; else 0.
int transposed_dim(const ElementwisePlan<2>& plan) {
  if (plan.shape[0] < 4 || plan.strides[0][1] == 0 || plan.strides[0][1] == 1) return 0;
  for (int d = 1; d < plan.ndim; ++d) {
    if (plan.strides[d][1] == 1 && plan.shape[d] >= 4) return d;
  }
  return 0;
}

/// out[j * out_across + i * out_step] = in[i * in_step + j] for a tile or a part of one. It goes through a buffer,
/// because the lines of either side may all fall into one set of the cache.
template <class T>
void transpose_tile(std::int64_t height, std::int64_t width, T* out, std::int64_t out_step, std::int64_t out_across,
                    const T* in, std::int64_t in_step) {
  T tile[kTileIn][kTileOut];
  for (std::int64_t i = 0; i < height; ++i) {
    for (std::int64_t j = 0; j < width; ++j) tile[j][i] = in[i * in_step + j];
  }
  for (std::int64_t j = 0; j < width; ++j) copy_row<T>(height, out + j * out_across, out_step, tile[j], 1);
}

/// Copies by tiles over dimension 0 and `across`, in which the input is adjacent.
template <class T>
void copy_transposed(const Stream& stream, const ElementwisePlan<2>& plan, int across, T* out, const T* in) {
  // The walk takes strips of kTileOut steps in dimension 0, for every position in the dimensions but `across`.
  const std::int64_t strips = (plan.shape[0] + kTileOut - 1) / kTileOut, width = plan.shape[across];
  const std::int64_t out_step = plan.strides[0][0], in_step = plan.strides[0][1];
  const std::int64_t out_across = plan.strides[across][0];
  ElementwisePlan<2> outer = plan;
  outer.shape[0] = strips;
  for (std::int64_t& stride : outer.strides[0]) stride *= kTileOut;
  outer.shape[across] = 1;
  outer.numel = plan.numel / plan.shape[0] / width * strips;
  parallel_for(stream, outer.numel, kGrain / (kTileOut * width) + 1, [&](std::int64_t begin, std::int64_t end) {
    std::int64_t strip = begin % strips;
    for_each_row(outer, begin, end, [&](const std::int64_t(&offsets)[2], std::int64_t n) {
      for (std::int64_t s = 0; s < n; ++s, strip = strip + 1 == strips ? 0 : strip + 1) {
        const std::int64_t height = strip + 1 == strips ? plan.shape[0] - strip * kTileOut : kTileOut;
        T* to = out + offsets[0] + s * kTileOut * out_step;
        const T* from = in + offsets[1] + s * kTileOut * in_step;
        for (std::int64_t j = 0; j < width; j += kTileIn) {
          transpose_tile(height, width - j < kTileIn ? width - j : kTileIn, to + j * out_across, out_step, out_across,
                         from + j, in_step);
        }
      }
    });
  });
}

template <class T>
void copy_bits(const Stream& stream, const ElementwisePlan<2>& plan, T* out, const T* in) {
  if (int across = transposed_dim(plan)) return copy_transposed(stream, plan, across, out, in);
  parallel_for(stream, plan.numel, kGrain, [&](std::int64_t begin, std::int64_t end) {
    for_each_row(plan, begin, end, [&](const std::int64_t(&offsets)[2], std::int64_t n) {
      copy_row(n, out + offsets[0], plan.strides[0][0], in + offsets[1], plan.strides[0][1]);
    });
  });
}

}  // namespace

void CpuBackend::fill(Stream& stream, const View& out, const Scalar& value) const {
  ScalarStorage storage;
  copy(stream, out, operand_view(value, out.dtype, storage));
}

void CpuBackend::copy(Stream& stream, const View& out, const View& in) const {
  ElementwisePlan<2> plan = plan_elementwise(out, in);
  if (plan.numel == 0) return;
  if (out.dtype != in.dtype) {
    RowKernel<2> kernel = nullptr;
    TANDEM_ISA_CALL(find_cast, out.dtype, in.dtype, kernel);
    return run_rows(stream, plan, kernel, Repeats::Walker, {&out, &in});
  }
  switch (size_of(out.dtype)) {
    case 1: return copy_bits(stream, plan, out.as<std::uint8_t>(), in.as<std::uint8_t>());
    case 4: return copy_bits(stream, plan, out.as<std::uint32_t>(), in.as<std::uint32_t>());
    default: return copy_bits(stream, plan, out.as<std::uint64_t>(), in.as<std::uint64_t>());
  }
}

void CpuBackend::arange(Stream& stream, const View& out, const Scalar& start, const Scalar& step) const {
  visit_dtype(out.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    using Wide = std::conditional_t<std::is_floating_point_v<T>, double, std::int64_t>;
    const Wide first = start.to<Wide>(), by = step.to<Wide>();
    const std::int64_t n = out.shape[0], stride = out.strides[0];
    T* data = out.as<T>();
    parallel_for(stream, n, kGrain, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) {
        data[i * stride] = math::convert<T>(math::add(first, math::mul(static_cast<Wide>(i), by)));
      }
    });
  });
}

}  // namespace tandem::kernels::cpu
