#include "links.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "../engine/error.h"
#include "../engine/ops_internal.h"
#include "../engine/runtime.h"
#include "../engine/time_mark.h"

namespace tandem::parallel {
namespace {

constexpr int kSmallCopies = 20;  // per round
constexpr auto kElement = static_cast<std::int64_t>(sizeof(std::int64_t));

/// SplitMix64's (Steele, Lea, Flood, 2014) scrambling, a bijection.
std::int64_t pattern_element(std::int64_t number, std::int64_t i) {
  auto z = (static_cast<std::uint64_t>(number) << 40) + static_cast<std::uint64_t>(i) + 0x9e3779b97f4a7c15;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
  z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
  return static_cast<std::int64_t>(z ^ (z >> 31));
}

std::int64_t copy_ns(const Tensor& to, const Tensor& from) {
  TimeMark(to.device()).time_ns();  // marks are precise for a second after one was read
  const TimeMark begin(to.device());
  copy_values(to, from);
  const TimeMark end(to.device());
  return end.time_ns() - begin.time_ns();
}

struct Probe {
  Link link;
  Tensor source, target;
  std::int64_t large_ns = std::numeric_limits<std::int64_t>::max();
  std::int64_t small_ns = large_ns;

  void carry_pattern(std::int64_t number) {
    copy_values(source, link_pattern(source.numel(), number));
    copy_values(target, source);
    link.fault = pattern_fault(target, number);
  }
  void take_turn() {
    large_ns = std::min(large_ns, copy_ns(target, source));
    const Tensor to = target.narrow(0, 0, 1), from = source.narrow(0, 0, 1);
    for (int i = 0; i < kSmallCopies; ++i) small_ns = std::min(small_ns, copy_ns(to, from));
  }
};

}  // namespace

Route route_between(Device from, Device to) {
  if (from.type != to.type) return Route::PinnedMemory;
  if (from.type == DeviceType::CPU) return Route::SameMemory;
  if (gpu_of(from) == gpu_of(to)) return Route::SameGpu;
  const bool peers = kernels::cuda::peers(*device_state(from).queue, *device_state(to).queue);
  return peers ? Route::Peers : Route::ThroughHost;
}

const char* name_of(Route route) {
  constexpr const char* names[] = {"same memory", "pinned memory", "same GPU", "peer access", "no peer access"};
  return names[static_cast<int>(route)];
}

Tensor link_pattern(std::int64_t n, std::int64_t number) {
  Tensor pattern = empty({n}, kInt64, cpu());
  auto* data = pattern.data<std::int64_t>();
  for (std::int64_t i = 0; i < n; ++i) data[i] = pattern_element(number, i);
  return pattern;
}

std::string pattern_fault(const Tensor& t, std::int64_t number) {
  const Tensor host = t.to(cpu()).contiguous();
  const auto* data = host.data<std::int64_t>();
  std::int64_t first = 0, wrong = 0;
  for (std::int64_t i = 0; i < host.numel(); ++i) {
    if (data[i] == pattern_element(number, i)) continue;
    if (wrong++ == 0) first = i;
  }
  if (wrong == 0) return {};
  return fmt::format("first wrong element {} of {}: got {:#018x}, wanted {:#018x}; {} wrong in all", first,
                     host.numel(), static_cast<std::uint64_t>(data[first]),
                     static_cast<std::uint64_t>(pattern_element(number, first)), wrong);
}

std::vector<Link> measure_links(const std::vector<Device>& devices, const LinkOptions& options) {
  if (devices.empty()) throw ValueError("measure_links: the list of devices is empty");
  if (options.bytes < kElement || options.rounds < 1) {
    throw ValueError(fmt::format("measure_links: got {} bytes and {} rounds, wanted at least {} and 1", options.bytes,
                                 options.rounds, kElement));
  }
  const std::int64_t n = options.bytes / kElement;
  std::vector<Tensor> sources, targets;
  for (Device d : devices) {
    sources.push_back(empty({n}, kInt64, d));
    targets.push_back(empty({n}, kInt64, d));
  }
  std::vector<Probe> probes;
  for (const Tensor& source : sources) {
    for (const Tensor& target : targets) {
      const Device from = source.device(), to = target.device();
      probes.push_back({{from, to, route_between(from, to)}, source, target});
    }
  }
  for (std::size_t i = 0; i < probes.size(); ++i) probes[i].carry_pattern(static_cast<std::int64_t>(i));
  for (int r = 0; r < options.rounds; ++r) {
    for (Probe& p : probes) p.take_turn();
  }
  std::vector<Link> links;
  for (Probe& p : probes) {
    p.link.gb_per_s = static_cast<double>(n * kElement) / static_cast<double>(p.large_ns);
    p.link.latency_us = static_cast<double>(p.small_ns) * 1e-3;
    links.push_back(std::move(p.link));
  }
  return links;
}

std::string links_table(const std::vector<Link>& links) {
  std::string text =
      fmt::format("{:<8} {:<8} {:<14} {:>9} {:>9}  {}\n", "from", "to", "route", "GB/s", "us", "pattern");
  for (const Link& l : links) {
    text += fmt::format("{:<8} {:<8} {:<14} {:>9.2f} {:>9.2f}  {}\n", str(l.from), str(l.to), name_of(l.route),
                        l.gb_per_s, l.latency_us, l.intact() ? "ok" : "CORRUPT: " + l.fault);
  }
  return text;
}

}  // namespace tandem::parallel
