// Copies of any layout, casts, fills and ranges. Traffic: one read and one write per element. A copy moves bits, so it
// is compiled per element size, not per dtype; casts convert as math/convert.h says.

#include "../math/convert.h"

#include "../math/integer.h"
#include "cuda_backend.h"
#include "elementwise.cuh"

namespace tandem::kernels::cuda {
namespace {

struct Same {
  template <class T>
  __device__ T operator()(T x) const {
    return x;
  }
};

template <class To>
struct Cast {
  template <class From>
  __device__ To operator()(From x) const {
    return math::convert<To>(x);
  }
};

template <class T, class Wide>
__global__ void arange_kernel(std::int64_t n, T* data, std::int64_t stride, Wide first, Wide by) {
  for (std::int64_t i = global_index(); i < n; i += global_stride()) {
    data[i * stride] = math::convert<T>(math::add(first, math::mul(static_cast<Wide>(i), by)));
  }
}

}  // namespace

void CudaBackend::fill(Stream& stream, const View& out, const Scalar& value) const {
  const Scope scope(stream, "fill");
  visit_dtype(out.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    launch_elementwise(scope.stream(), plan_elementwise(out, View{}), Same{}, out.as<T>(), source<T>(Operand(value)));
  });
}

void CudaBackend::copy(Stream& stream, const View& out, const View& in) const {
  const Scope scope(stream, "copy");
  const auto plan = plan_elementwise(out, in);
  const auto run = [&](auto bits, auto f) {
    using T = decltype(bits);
    launch_elementwise(scope.stream(), plan, f, out.as<T>(), source<T>(in));
  };
  if (out.dtype == in.dtype) {
    switch (size_of(out.dtype)) {
      case 1: return run(std::uint8_t{}, Same{});
      case 4: return run(std::uint32_t{}, Same{});
      default: return run(std::uint64_t{}, Same{});
    }
  }
  visit_dtype(out.dtype, [&](auto to) {
    visit_dtype(in.dtype, [&](auto from) {
      using To = typename decltype(to)::type;
      using From = typename decltype(from)::type;
      if constexpr (!std::is_same_v<To, From>) {
        launch_elementwise(scope.stream(), plan, Cast<To>{}, out.as<To>(), source<From>(in));
      }
    });
  });
}

void CudaBackend::arange(Stream& stream, const View& out, const Scalar& start, const Scalar& step) const {
  const Scope scope(stream, "arange");
  visit_dtype(out.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    using Wide = std::conditional_t<std::is_floating_point_v<T>, double, std::int64_t>;
    launch(arange_kernel<T, Wide>, blocks_for(out.shape[0]), kBlock, 0, scope.stream(), out.shape[0], out.as<T>(),
           out.strides[0], start.to<Wide>(), step.to<Wide>());
  });
}

}  // namespace tandem::kernels::cuda
