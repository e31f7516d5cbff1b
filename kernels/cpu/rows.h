#pragma once
// Elementwise work as rows: a row kernel is one tight loop over adjacent elements, and the walker here brings every
// shape, stride and broadcast to that form. So a formula needs one short loop per type and instruction set.

#include <cstdint>

#include "../backend.h"
#include "../elementwise_plan.h"

namespace tandem::kernels::cpu {

/// Work on fewer elements than this stays in the calling thread.
inline constexpr std::int64_t kGrain = 128 * 1024;

/// Computes n adjacent elements of data[0] from the inputs data[1], ...; input k starts at data[k], and steps[k] is 1,
/// or 0 if every element is the same one.
template <int N>
using RowKernel = void (*)(std::int64_t n, void* const (&data)[N], const std::int64_t (&steps)[N]);

/// Who deals with inputs of step 0: the kernel, or the walker, which then hands over copies with step 1 only.
enum class Repeats { Kernel, Walker };

/// Runs a row kernel over all of a plan. `views` are the plan's operands, for their data and dtypes.
template <int N>
void run_rows(const Stream& stream, const ElementwisePlan<N>& plan, RowKernel<N> kernel, Repeats repeats,
              const View* const (&views)[N]);

/// A view of an operand; a scalar is first converted to `dtype` and kept in `storage`.
struct ScalarStorage {
  alignas(8) unsigned char bytes[8];
};
View operand_view(const Operand& operand, DType dtype, ScalarStorage& storage);

}  // namespace tandem::kernels::cpu
