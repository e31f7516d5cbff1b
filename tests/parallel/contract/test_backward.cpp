// How gradients come back to the module: rows F1 to F8 of the behaviour table.

#include <algorithm>

#include "../helpers.h"

using namespace tandem;
using namespace tandem::test;
using parallel::DataParallel;
using parallel::Phase;
using parallel::reduce_add;
using parallel::reduce_add_coalesced;

TEST_CASE("F1: gradients of all replicas are summed into the module's own leaves, and accumulate", "[contract]") {
  ON_EVERY_DEVICE(on);
  Scale model;
  DataParallel net(model, on.first(3));
  const Tensor x = tensor({1.0, 2.0, 4.0});
  net(x).sum().backward();
  CHECK(model.w.is_leaf());
  CHECK(model.w.grad().device() == on(0));
  CHECK(model.w.grad().item() == 7);
  net(x).sum().backward();
  CHECK(model.w.grad().item() == 14);
}

TEST_CASE("F2: gradients are reduced in buckets, whose number changes nothing", "[contract]") {
  ON_EVERY_DEVICE(on);
  Mlp model;
  model.to(kFloat64);
  const Tensor x = integers({5, 6}, 3) / 4;
  std::vector<std::vector<double>> grads;
  std::vector<std::ptrdiff_t> reductions;
  for (const std::int64_t bytes : {std::int64_t{1}, std::int64_t{1} << 20}) {
    model.zero_grad();
    DataParallel net(model, on.first(2), {.bucket_bytes = bytes});
    net(x).sum().backward();
    const auto entries = net.ledger().entries();
    reductions.push_back(std::count_if(entries.begin(), entries.end(),
                                       [](const parallel::LedgerEntry& e) { return e.phase == Phase::Reduce; }));
    for (const Tensor& p : model.parameters()) grads.push_back(values(p.grad()));
  }
  CHECK(reductions == std::vector<std::ptrdiff_t>{4, 1});
  for (std::size_t i = 0; i < 4; ++i) CHECK(grads[i] == grads[i + 4]);
}

namespace {
struct Halves : nn::Module {
  nn::Parameter first{tensor({2.0})}, second{tensor({3.0})}, unused{tensor({5.0})};
  Tensor forward(const Tensor& x) { return x * (parallel::current_replica().index == 0 ? first : second); }
  TANDEM_MODULE(Halves, first, second, unused)
};
}  // namespace

TEST_CASE("F3: a parameter that no replica used has no gradient, and weight decay leaves it", "[contract]") {
  ON_EVERY_DEVICE(on);
  Halves model;
  optim::SGD sgd(model.parameters(), {.lr = 0.5, .weight_decay = 1});
  DataParallel net(model, on.first(2));
  net(tensor({1.0, 10.0})).sum().backward();
  CHECK(model.first.grad().item() == 1);
  CHECK(model.second.grad().item() == 10);
  CHECK_FALSE(model.unused.grad().defined());
  sgd.step();
  CHECK(model.unused.item() == 5);
  CHECK(model.first.item() == 0.5);
}

TEST_CASE("F4: reduce_add sums in the order of devices, to any of them", "[contract]") {
  ON_EVERY_DEVICE(on);
  // In float32 1e8 swallows 1, so the sum is 1 only if the last part is added last.
  const std::vector<Tensor> parts{tensor({1e8}), tensor({-1e8}).to(on(1)), tensor({1.0}).to(on(2))};
  for (const int home : {0, 2, 3}) {
    const Tensor sum = reduce_add(parts, on(home));
    CHECK(sum.device() == on(home));
    CHECK(sum.item() == 1);
  }
  CHECK(reduce_add(std::vector{parts[2]}, on(2)).item() == 1);
  check_error<ShapeError>(
      [&] {
        reduce_add(std::vector{ones({2}), ones({3}, kFloat32, on(1))}, on(0));
      },
      {"device 1", "(3)", "(2)"});
}

TEST_CASE("F5, upstream-comm-reduce_add_coalesced: coalesced sums keep order and dtype, and have versions of their own",
          "[contract]") {
  ON_EVERY_DEVICE(on);
  const std::vector<Tensor> at_home{integers({2, 3}), integers({4}, 1, kInt64), integers({}, 2, kFloat32)};
  std::vector<std::vector<Tensor>> rows{at_home, {}};
  for (const Tensor& t : at_home) rows[1].push_back(t.to(on(1)));
  const auto sums = reduce_add_coalesced(rows, on(0));
  REQUIRE(sums.size() == 3);
  for (std::size_t i = 0; i < 3; ++i) {
    CHECK(sums[i].dtype() == at_home[i].dtype());
    CHECK(equal(sums[i], at_home[i] * 2));
  }
  const std::vector<std::vector<Tensor>> one_device{{ones({2}), ones({2})}};
  auto again = reduce_add_coalesced(one_device, on(0));
  const auto before = again[1].version();
  again[0].add_(1);
  CHECK(again[1].version() == before);
  CHECK(values(again[1]) == std::vector<double>{1, 1});
}

TEST_CASE("F6: gradients are laid out as their parameters", "[contract]") {
  ON_EVERY_DEVICE(on);
  nn::Conv2d model(2, 3, 2);
  DataParallel net(model, on.first(2));
  for (int i = 0; i < 2; ++i) {
    net(ones({4, 2, 3, 3})).sum().backward();
    for (const Tensor& p : model.parameters()) {
      CHECK(p.grad().sizes() == p.sizes());
      CHECK(p.grad().strides() == p.strides());
    }
  }
  CHECK(values(model.bias.grad()) == std::vector<double>{32, 32, 32});
}

TEST_CASE("F7: broadcast and scatter can be differentiated twice", "[contract]") {
  ON_EVERY_DEVICE(on);
  Scale model;
  DataParallel net(model, on.first(2));
  Tensor x = tensor({1.0, 2.0, 3.0}).requires_grad_();
  const Tensor y = net(x);
  // d sum(y^2) / dx = 2 w^2 x, and the sum of that has the derivative 4 w sum(x) by w and 2 w^2 by x.
  const Tensor gx = grad({(y * y).sum()}, {x}, {}, {.create_graph = true})[0];
  CHECK(values(gx.detach()) == std::vector<double>{18, 36, 54});
  gx.sum().backward();
  CHECK(model.w.grad().item() == 72);
  CHECK(values(x.grad()) == std::vector<double>{18, 18, 18});
}

TEST_CASE("F8: every device runs the backward pass of its replica", "[contract]") {
  ON_EVERY_DEVICE(on);
  Mlp model;
  DataParallel net(model, on.first(3));
  net(ones({3, 6})).sum().backward();
  const auto totals = net.ledger().totals();
  for (const Device d : on.first(3)) {
    CHECK(std::any_of(totals.begin(), totals.end(), [&](const parallel::PhaseTotal& t) {
      return t.phase == Phase::Backward && t.device == d && t.calls > 0;
    }));
  }
}
