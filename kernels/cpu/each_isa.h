// Includes TANDEM_ISA_SOURCE once per instruction set, each time in a namespace of its own. No include guard: each
// kernel file includes it once. The source holds loops only and includes nothing, so that no function of the standard
// library is ever compiled for a processor that may not be there. It may use kVectorBytes, the width of a vector
// register.

#if defined(__clang__)
#pragma clang diagnostic push
#pragma clang diagnostic ignored "-Wpass-failed"  // loops that turn out not to vectorise, as those over pow
#endif

namespace tandem::kernels::cpu::isa_base {
inline constexpr int kVectorBytes = 16;
#include TANDEM_ISA_SOURCE
}  // namespace tandem::kernels::cpu::isa_base

#if defined(__x86_64__)
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma,f16c,bmi2"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c,bmi2")
#endif
namespace tandem::kernels::cpu::isa_avx2 {
inline constexpr int kVectorBytes = 32;
#include TANDEM_ISA_SOURCE
}  // namespace tandem::kernels::cpu::isa_avx2
#if defined(__clang__)
#pragma clang attribute pop
#pragma clang attribute push(__attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c,bmi2"))), \
                             apply_to = function)
#else
#pragma GCC pop_options
#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c,bmi2,prefer-vector-width=512")
#endif
namespace tandem::kernels::cpu::isa_avx512 {
inline constexpr int kVectorBytes = 64;
#include TANDEM_ISA_SOURCE
}  // namespace tandem::kernels::cpu::isa_avx512
#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
#endif

#if defined(__clang__)
#pragma clang diagnostic pop
#endif
