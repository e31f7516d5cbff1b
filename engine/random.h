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

/// A part of a batch: `count` of its `total` samples, from `first` on. While a thread's context has one, random
/// functions of that thread draw, on whatever device, the numbers that `home` would draw for these samples if it drew
/// for the whole batch. Samples lie along dimension 0: ValueError if the elements are not as many for each. A part
/// without samples draws nothing, and cannot know how far the others' generator moves. Used by one thread at a time.
struct SampleRange {
  Device home;
  GeneratorState generator;  ///< moved by every draw, as home's would be; that of the device stays where it is
  std::int64_t first = 0, count = 0, total = 0;
};

/// Takes the counters for `n` elements of `dtype` from a device's generator, or from the context's SampleRange.
kernels::PhiloxState reserve_random(Device device, std::int64_t n, DType dtype);

}  // namespace tandem
