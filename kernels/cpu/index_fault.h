#pragma once
// How kernels report an index out of range.

#include "../backend.h"

namespace tandem::kernels::cpu {

inline bool in_range(std::int64_t value, std::int64_t limit) { return value >= 0 && value < limit; }

/// Keeps the first fault of a stream.
inline void report_fault(Stream& stream, std::int64_t position, std::int64_t value, std::int64_t limit) {
  if (!stream.index_fault.set) stream.index_fault = {true, position, value, limit};
}

}  // namespace tandem::kernels::cpu
