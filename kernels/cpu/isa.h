#pragma once
// Which vector instructions this processor has. Loops are compiled for each level (each_isa.h) and chosen at run time.

namespace tandem::kernels::cpu {

enum class Isa { Base, Avx2, Avx512 };

/// The highest level that the processor has; TANDEM_ISA=base|avx2|avx512 in the environment lowers it. Read once.
Isa isa();

}  // namespace tandem::kernels::cpu

/// Calls `fn(...)` as compiled for this processor.
#if defined(__x86_64__)
#define TANDEM_ISA_CALL(fn, ...)                                                                          \
  switch (::tandem::kernels::cpu::isa()) {                                                                \
    case ::tandem::kernels::cpu::Isa::Avx512: ::tandem::kernels::cpu::isa_avx512::fn(__VA_ARGS__); break; \
    case ::tandem::kernels::cpu::Isa::Avx2: ::tandem::kernels::cpu::isa_avx2::fn(__VA_ARGS__); break;     \
    case ::tandem::kernels::cpu::Isa::Base: ::tandem::kernels::cpu::isa_base::fn(__VA_ARGS__); break;     \
  }
#else
#define TANDEM_ISA_CALL(fn, ...) ::tandem::kernels::cpu::isa_base::fn(__VA_ARGS__)
#endif
