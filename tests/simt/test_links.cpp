// Links between GPUs that do not use each other's memory, and links that are broken.

#include <tandem/tandem.h>

#include "../../kernels/simt/control.h"
#include "../catch.h"
#include "../child.h"

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

TEST_CASE("links: a DataParallel over GPUs that are no peers", "[.]") {
  if (!is_child()) return;
  const DefaultDeviceGuard home(cuda(0));
  nn::Sequential model(nn::Linear(3, 2));
  const Tensor x = randn({4, 3});
  const Tensor wanted = model(x).detach();
  model(x).sum().backward();
  const std::vector<double> gradient = model.parameters()[0].grad().to_vector();
  model.zero_grad();
  parallel::DataParallel net(model, {cuda(0), cuda(1), cuda(2)});
  CHECK(net.transport().name() == std::string("host"));
  CHECK_THAT(net.ledger().table(), ContainsSubstring("host, since cuda:0 and cuda:2 do not use each other's"));
  const Tensor y = net(x);
  CHECK(allclose(y, wanted));
  y.sum().backward();
  CHECK(allclose(model.parameters()[0].grad(), from_vector(gradient, {2, 3}).to(kFloat32).to(cuda(0))));
}

TEST_CASE("links: a DataParallel goes through the host where GPUs are no peers, and says why") {
  // NCCL, which needs no peers, is out of the question where two devices are on one GPU.
  const Child child = run_child("links: a DataParallel over GPUs that are no peers",
                                {{"TANDEM_SIM_PEERS", "none"}, {"TANDEM_DEVICES_PER_GPU", "2"}});
  CAPTURE(child.output);
  CHECK(child.passed());
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
