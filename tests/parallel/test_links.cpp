// Links between devices: every pair is there, with its route and figures, and a wrong element is found and told.

#include <cmath>
#include <set>

#include "../engine/helpers.h"
#include "helpers.h"

using namespace tandem;
using namespace tandem::test;
using parallel::Link;
using parallel::link_pattern;
using parallel::links_table;
using parallel::measure_links;
using parallel::pattern_fault;
using parallel::Route;

TEST_CASE("links: all ordered pairs carry their patterns, and have figures", "[links]") {
  ON_EVERY_DEVICE(on);
  const std::vector<Device> devices{on(0), on(1), cpu(2)};
  const std::vector<Link> links = measure_links(devices, {.bytes = 80'003, .rounds = 2});
  REQUIRE(links.size() == 9);
  const std::string table = links_table(links);
  CAPTURE(table);
  CHECK_THAT(table, !ContainsSubstring("CORRUPT"));
  for (std::size_t i = 0; i < links.size(); ++i) {
    const Link& link = links[i];
    INFO(str(link.from) << " to " << str(link.to));
    CHECK(link.from == devices[i / 3]);
    CHECK(link.to == devices[i % 3]);
    CHECK(link.fault == "");
    CHECK((link.gb_per_s > 0 && std::isfinite(link.gb_per_s)));
    CHECK((link.latency_us > 0 && link.latency_us < 1e6));
    CHECK_THAT(table, ContainsSubstring("\n" + str(link.from) + std::string(9 - str(link.from).size(), ' ') +
                                        str(link.to) + " "));
  }
  const Route self = on.are_cpus() ? Route::SameMemory : Route::SameGpu;
  const Route outside = on.are_cpus() ? Route::SameMemory : Route::PinnedMemory;
  CHECK(links[0].route == self);
  CHECK(links[4].route == self);
  for (const std::size_t i : {2, 5, 6, 7}) CHECK(links[i].route == outside);
  CHECK(links[8].route == Route::SameMemory);
}

TEST_CASE("links: no element of the patterns occurs twice", "[links]") {
  std::set<std::int64_t> seen;
  for (int number = 0; number < 4; ++number) {
    for (const auto element : link_pattern(1000, number).to_vector<std::int64_t>()) seen.insert(element);
  }
  CHECK(seen.size() == 4000);
}

TEST_CASE("links: a pattern that has changed is told by its first wrong element", "[links]") {
  ON_EVERY_DEVICE(on);
  const Tensor pattern = link_pattern(1000, 7);
  CHECK(pattern_fault(pattern.to(on(1)), 7) == "");
  Tensor damaged = pattern.clone();
  auto* data = damaged.data<std::int64_t>();
  REQUIRE(static_cast<std::uint64_t>(link_pattern(1, 0).item<std::int64_t>()) == 0xe220a8397b1dcdaf);  // as published
  data[123] ^= 1;
  data[999] = 0;
  CHECK(pattern_fault(damaged.to(on(1)), 7) ==
        "first wrong element 123 of 1000: got 0x8f3247d2613a4839, wanted 0x8f3247d2613a4838; 2 wrong in all");
  CHECK_THAT(pattern_fault(pattern, 8), ContainsSubstring("element 0 of 1000") && ContainsSubstring("; 1000 wrong"));
  CHECK_THAT(pattern_fault(pattern.narrow(0, 1, 999), 7), ContainsSubstring("; 999 wrong"));
}

TEST_CASE("links: the table", "[links]") {
  CHECK(links_table({{cpu(0), cuda(1), Route::PinnedMemory, 12.345, 6.5},
                     {cuda(10), cuda(1), Route::ThroughHost, 250, 11, "first wrong element 5"}}) ==
        "from     to       route               GB/s        us  pattern\n"
        "cpu:0    cuda:1   pinned memory      12.35      6.50  ok\n"
        "cuda:10  cuda:1   no peer access    250.00     11.00  CORRUPT: first wrong element 5\n");
}

TEST_CASE("links: bad arguments", "[links]") {
  CHECK_ERROR(measure_links({}), ValueError, "measure_links: the list of devices is empty");
  CHECK_ERROR(measure_links({cpu()}, {.bytes = 7}), ValueError, "got 7 bytes and 5 rounds, wanted at least 8 and 1");
  CHECK_ERROR(measure_links({cpu()}, {.rounds = 0}), ValueError, "and 0 rounds, wanted at least 8 and 1");
  CHECK_ERROR(measure_links({cpu(), cpu(999)}), DeviceError, "there is no cpu:999");
  CHECK_ERROR(get_device_name(cpu(999)), DeviceError, "there is no cpu:999");
  CHECK(get_device_name(cpu(1)) == "CPU");
}
