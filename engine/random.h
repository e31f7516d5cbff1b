#pragma once
// Random numbers: one counter-based generator per device, Philox4x32-10 (Salmon et al. 2011). A device's index selects
// the subsequence: cpu:0 and cuda:0 draw the same numbers, cpu:0 and cpu:1 different ones.

#include <cstdint>

#include "../kernels/backend.h"
#include "device.h"
#include "shape.h"

namespace tandem {

/// Seeds every device, and sets their positions to 0. Without it the seed is 0.
void manual_seed(std::uint64_t seed);

/// Where a device's generator stands, to be saved and restored.
struct GeneratorState {
  std::uint64_t seed = 0;
  std::uint64_t offset = 0;
  friend bool operator==(const GeneratorState&, const GeneratorState&) = default;
};
GeneratorState generator_state(Device device);
void set_generator_state(Device device, GeneratorState state);

/// Takes the counters for `n` elements of `dtype` from a device's generator.
kernels::PhiloxState reserve_random(Device device, std::int64_t n, DType dtype);

}  // namespace tandem
