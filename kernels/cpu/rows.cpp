// The walker of elementwise kernels.

#include "rows.h"

#include <cstring>

#include "parallel.h"

namespace tandem::kernels::cpu {
namespace {

/// Elements that are brought into adjacent places at a time.
constexpr std::int64_t kStretch = 512;

template <class T>
void gather_as(void* to, const void* from, std::int64_t step, std::int64_t n) {
  T* out = static_cast<T*>(to);
  const T* in = static_cast<const T*>(from);
  for (std::int64_t i = 0; i < n; ++i) out[i] = in[i * step];
}
void gather(void* to, const void* from, std::size_t size, std::int64_t step, std::int64_t n) {
  if (size == 1) return gather_as<std::uint8_t>(to, from, step, n);
  if (size == 4) return gather_as<std::uint32_t>(to, from, step, n);
  gather_as<std::uint64_t>(to, from, step, n);
}

template <class T>
void scatter_as(void* to, const void* from, std::int64_t step, std::int64_t n) {
  T* out = static_cast<T*>(to);
  const T* in = static_cast<const T*>(from);
  for (std::int64_t i = 0; i < n; ++i) out[i * step] = in[i];
}
void scatter(void* to, const void* from, std::size_t size, std::int64_t step, std::int64_t n) {
  if (size == 1) return scatter_as<std::uint8_t>(to, from, step, n);
  if (size == 4) return scatter_as<std::uint32_t>(to, from, step, n);
  scatter_as<std::uint64_t>(to, from, step, n);
}

char* at(void* data, std::int64_t offset, std::size_t size) {
  return static_cast<char*>(data) + offset * static_cast<std::int64_t>(size);
}

/// One row with steps that the kernel does not take: through a buffer, stretch by stretch.
template <int N>
void strided_row(RowKernel<N> kernel, bool repeats_in_kernel, std::int64_t n, void* const (&data)[N],
                 const std::int64_t (&steps)[N], const std::size_t (&sizes)[N]) {
  alignas(64) unsigned char buffers[N][kStretch * 8];
  void* near[N];
  std::int64_t near_steps[N];
  for (std::int64_t begin = 0; begin < n; begin += kStretch) {
    std::int64_t size = n - begin < kStretch ? n - begin : kStretch;
    for (int k = 0; k < N; ++k) {
      char* from = at(data[k], begin * steps[k], sizes[k]);
      bool direct = steps[k] == 1 || (steps[k] == 0 && repeats_in_kernel && k > 0);
      near[k] = direct ? from : static_cast<void*>(buffers[k]);
      near_steps[k] = direct ? steps[k] : 1;
      if (!direct && k > 0) gather(buffers[k], from, sizes[k], steps[k], size);
    }
    kernel(size, near, near_steps);
    if (steps[0] != 1) scatter(at(data[0], begin * steps[0], sizes[0]), buffers[0], sizes[0], steps[0], size);
  }
}

}  // namespace

template <int N>
void run_rows(const Stream& stream, const ElementwisePlan<N>& plan, RowKernel<N> kernel, Repeats repeats,
              const View* const (&views)[N]) {
  const std::int64_t(&steps)[N] = plan.strides[0];
  std::size_t sizes[N];
  for (int k = 0; k < N; ++k) sizes[k] = size_of(views[k]->dtype);
  bool direct = steps[0] == 1;
  for (int k = 1; k < N; ++k) direct &= steps[k] == 1 || (steps[k] == 0 && repeats == Repeats::Kernel);
  parallel_for(stream, plan.numel, kGrain, [&](std::int64_t begin, std::int64_t end) {
    for_each_row(plan, begin, end, [&](const std::int64_t(&offsets)[N], std::int64_t n) {
      void* data[N];
      for (int k = 0; k < N; ++k) data[k] = at(views[k]->data, offsets[k], sizes[k]);
      if (direct) {
        kernel(n, data, steps);
      } else {
        strided_row(kernel, repeats == Repeats::Kernel, n, data, steps, sizes);
      }
    });
  });
}

template void run_rows(const Stream&, const ElementwisePlan<2>&, RowKernel<2>, Repeats, const View* const (&)[2]);
template void run_rows(const Stream&, const ElementwisePlan<3>&, RowKernel<3>, Repeats, const View* const (&)[3]);
template void run_rows(const Stream&, const ElementwisePlan<4>&, RowKernel<4>, Repeats, const View* const (&)[4]);

View operand_view(const Operand& operand, DType dtype, ScalarStorage& storage) {
  if (!operand.is_scalar) return operand.view;
  visit_dtype(dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    T value = operand.scalar.to<T>();
    std::memcpy(storage.bytes, &value, sizeof value);
  });
  View view;
  view.data = storage.bytes;
  view.dtype = dtype;
  return view;
}

}  // namespace tandem::kernels::cpu
