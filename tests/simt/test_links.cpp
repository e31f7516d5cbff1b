// Links between GPUs that do not use each other's memory, and links that are broken.

#include <tandem/tandem.h>

#include "../../kernels/simt/control.h"
#include "../catch.h"
#include "child.h"

using namespace tandem;
using parallel::Link;
using parallel::Route;

TEST_CASE("links: only cuda:0 and cuda:1 are peers", "[.]") {
  if (!is_child()) return;
  const std::vector<Link> links = parallel::measure_links({cuda(0), cuda(1), cuda(2)}, {.bytes = 80'000, .rounds = 1});
  const Route self = Route::SameGpu, peers = Route::Peers, host = Route::ThroughHost;
  const Route wanted[] = {self, peers, host, peers, self, host, host, host, self};
  REQUIRE(links.size() == std::size(wanted));
  for (std::size_t i = 0; i < links.size(); ++i) {
    INFO(str(links[i].from) << " to " << str(links[i].to));
    CHECK(links[i].route == wanted[i]);
    CHECK(links[i].fault == "");
  }
}

TEST_CASE("links: without peer access copies arrive all the same") {
  const Child child = run_child("links: only cuda:0 and cuda:1 are peers", {{"TANDEM_SIM_PEERS", "0-1"}});
  CAPTURE(child.output);
  CHECK(child.passed());
}

TEST_CASE("links: broken ones are found, and only they") {
  simt::garble_peer_copies(true);
  const std::vector<Link> links = parallel::measure_links({cpu(0), cuda(0), cuda(1)}, {.bytes = 8000, .rounds = 1});
  simt::garble_peer_copies(false);
  REQUIRE(links.size() == 9);
  for (const Link& link : links) {
    INFO(str(link.from) << " to " << str(link.to));
    if (link.route == Route::Peers) {
      CHECK_THAT(link.fault,
                 ContainsSubstring("first wrong element 500 of 1000: got 0x") && ContainsSubstring("; 1 wrong in all"));
    } else {
      CHECK(link.fault == "");
    }
  }
  CHECK_FALSE(links[5].intact());
  CHECK_FALSE(links[7].intact());
}
