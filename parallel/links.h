#pragma once
// The links between devices: whether copies over them arrive, how fast they are, and how soon they are there.

#include <cstdint>
#include <string>
#include <vector>

#include "../engine/tensor.h"

namespace tandem::parallel {

/// What a copy goes through.
enum class Route : std::uint8_t {
  SameMemory,    ///< between CPU devices, which share the host's memory
  PinnedMemory,  ///< between a CPU device and a GPU, in pieces
  SameGpu,       ///< inside one GPU
  Peers,         ///< between GPUs that use each other's memory: straight across
  ThroughHost,   ///< between GPUs that do not: CUDA takes it through the host
};
/// "same memory", "pinned memory", "same GPU", "peer access", "no peer access".
const char* name_of(Route route);

/// That of a copy from one device to another. DeviceError for devices that do not exist.
Route route_between(Device from, Device to);

/// Copies from one device to another, or to itself.
struct Link {
  Device from, to;
  Route route{};
  double gb_per_s = 0;    ///< of a large copy; 1 GB = 1e9 bytes, each counted once
  double latency_us = 0;  ///< of a copy of 8 bytes
  std::string fault{};    ///< how a pattern differed when it had been copied; empty: it arrived

  bool intact() const { return fault.empty(); }
};

struct LinkOptions {
  /// Of a large copy, at least 8; rounded down to a multiple of 8.
  std::int64_t bytes = std::int64_t{64} << 20;
  /// How often the links take turns, at least 1. The fastest copies count.
  int rounds = 5;
};

/// The links between all ordered pairs of devices, by source, then target, in the order of `devices`. Each first
/// carries a pattern of its own, which the host compares element for element; then copies are timed, on the target.
/// They are those that Tensor::to and DataParallel make. Takes twice `bytes` of every device, and once more of the
/// host. ValueError for an empty list and for options out of range, DeviceError for devices that do not exist,
/// MemoryError.
std::vector<Link> measure_links(const std::vector<Device>& devices, const LinkOptions& options = {});

/// A header and a row per link: from, to, route, GB/s, us, and "ok" or "CORRUPT: " with the fault.
std::string links_table(const std::vector<Link>& links);

/// n int64 elements on cpu:0, scrambled. No element of any pattern occurs twice, in this or in another pattern, for n
/// up to 2^40 and numbers up to 2^24.
Tensor link_pattern(std::int64_t n, std::int64_t number);
/// Compares t, of int64 and on any device, with link_pattern(t.numel(), number): names the first wrong element and says
/// how many there are; empty if there is none.
std::string pattern_fault(const Tensor& t, std::int64_t number);

}  // namespace tandem::parallel
