// BatchNorm by the statistics of the whole batch, and what happens to replicas that wait for others.

#include <cmath>
#include <exception>
#include <optional>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>

#include "helpers.h"

using namespace tandem;
using namespace tandem::test;
using parallel::data_parallel;
using parallel::DataParallel;
using parallel::ReplicaError;

namespace {

const parallel::DataParallelOptions kSync = {.sync_batch_norm = true};

/// A normalisation between two maps, so that gradients flow through it into parameters.
template <class Norm>
struct Net : nn::Module {
  nn::Parameter w{from_vector(std::vector<double>{0.5, -2, 3}, {3})};
  Norm norm;
  explicit Net(const nn::BatchNormOptions& options = {}) : norm(3, options) {
    to(kFloat64);
    const NoGradGuard no_grad;
    if (norm.weight.defined()) norm.weight.copy_(tensor({1.5, -0.5, 2.0}));
    if (norm.bias.defined()) norm.bias.copy_(tensor({0.1, 0.2, -0.3}));
  }
  Tensor forward(const Tensor& x) {
    Shape column(std::vector<std::int64_t>(static_cast<std::size_t>(x.dim()), 1));
    column[1] = 3;
    return norm(tanh(x * w.reshape(column)));
  }
  TANDEM_MODULE(Net, w, norm)
};
using Net1d = Net<nn::BatchNorm1d>;
using Net2d = Net<nn::BatchNorm2d>;

bool close(const Tensor& a, const Tensor& b) { return allclose(a, b, 1e-12, 1e-13); }

/// Runs `steps` training steps of a network on one device and of its twin on several, which must agree at each.
template <class N>
void compare(const std::vector<Device>& devices, const Shape& shape, const nn::BatchNormOptions& options = {}) {
  N alone(options);
  N twin(options);
  DataParallel net(twin, devices, kSync);
  for (int step = 0; step < 3; ++step) {
    Tensor x = (randn(shape, kFloat64) + 0.5).requires_grad_();
    Tensor y = x.detach().clone().requires_grad_();
    const Tensor c = randn(shape, kFloat64);
    alone.zero_grad();
    twin.zero_grad();
    const Tensor want = alone(x);
    const Tensor got = net(y);
    (want * want * c).sum().backward();
    (got * got * c).sum().backward();
    CHECK(close(got.detach(), want.detach()));
    CHECK(close(y.grad(), x.grad()));
    for (std::size_t i = 0; i < alone.parameters().size(); ++i) {
      CHECK(close(twin.parameters()[i].grad(), alone.parameters()[i].grad()));
    }
    if (!options.track_running_stats) continue;
    CHECK(close(twin.norm.running_mean, alone.norm.running_mean));
    CHECK(close(twin.norm.running_var, alone.norm.running_var));
    CHECK(twin.norm.num_batches_tracked.template item<std::int64_t>() == step + 1);
  }
}

}  // namespace

TEST_CASE("synchronised BatchNorm gives one device's results and gradients", "[syncbn]") {
  ON_EVERY_DEVICE(on);
  struct Case {
    std::int64_t batch;
    int devices;
  };
  for (const Case& c : {Case{5, 4}, Case{8, 2}, Case{9, 3}, Case{4, 4}, Case{4, 1}}) {
    INFO("batch " << c.batch << " on " << c.devices);
    compare<Net1d>(on.first(c.devices), {c.batch, 3});
    compare<Net1d>(on.first(c.devices), {c.batch, 3, 2});
    compare<Net2d>(on.first(c.devices), {c.batch, 3, 2, 4});
  }
}

TEST_CASE("synchronised BatchNorm with every option", "[syncbn]") {
  ON_EVERY_DEVICE(on);
  compare<Net2d>(on.first(3), {5, 3, 2, 2}, {.momentum = std::nullopt});
  compare<Net2d>(on.first(3), {5, 3, 2, 2}, {.affine = false});
  compare<Net2d>(on.first(3), {5, 3, 2, 2}, {.track_running_stats = false});
}

TEST_CASE("whole-batch statistics, worked by hand", "[syncbn]") {
  ON_EVERY_DEVICE(on);
  nn::BatchNorm1d model(1, {.eps = 0});
  DataParallel net(model, on.first(2), kSync);
  // Mean 4; squared deviations 9, 1, 1, 9 of sum 20.
  const Tensor out = net(from_vector(std::vector<float>{1, 3, 5, 7}, {4, 1}));
  const double unit = 1 / std::sqrt(5.0);
  CHECK(
      allclose(out.detach(), from_vector(std::vector<double>{-3 * unit, -unit, unit, 3 * unit}, {4, 1}).to(kFloat32)));
  CHECK(allclose(model.running_mean, tensor({0.4})));
  CHECK(allclose(model.running_var, tensor({0.9 + 0.1 * 20 / 3})));
}

TEST_CASE("without the option each chunk has its own statistics, and in eval() nothing waits", "[syncbn]") {
  ON_EVERY_DEVICE(on);
  const Tensor x = randn({6, 3}, kFloat64);
  Net1d plain;
  Net1d twin;
  const Tensor first = plain(x.narrow(0, 0, 3)).detach();
  CHECK(close(DataParallel(twin, on.first(2))(x).detach().narrow(0, 0, 3), first));
  CHECK(close(twin.norm.running_mean, plain.norm.running_mean));
  plain.eval();
  twin.eval();
  const std::vector<double> mean = values(twin.norm.running_mean);
  CHECK(close(DataParallel(twin, on.first(2), kSync)(x).detach(), plain(x).detach()));
  CHECK(values(twin.norm.running_mean) == mean);
}

TEST_CASE("a gradient penalty through synchronised BatchNorm is one device's", "[syncbn]") {
  ON_EVERY_DEVICE(on);
  const Tensor x = randn({5, 3}, kFloat64);
  const Tensor c = randn({5, 3}, kFloat64);
  const auto penalty = [&](Net1d& model, auto& net) {
    Tensor in = x.clone().requires_grad_();
    const Tensor out = net(in);
    const Tensor g = grad({(out * out * c).sum()}, {in}, {}, {.create_graph = true})[0];
    (g * g).sum().backward();
    std::vector<Tensor> grads{in.grad()};
    for (const Tensor& p : model.parameters()) grads.push_back(p.grad());
    return grads;
  };
  Net1d alone;
  Net1d twin;
  DataParallel net(twin, on.first(3), kSync);
  const std::vector<Tensor> want = penalty(alone, alone);
  const std::vector<Tensor> got = penalty(twin, net);
  for (std::size_t i = 0; i < want.size(); ++i) {
    REQUIRE(got[i].defined() == want[i].defined());
    if (want[i].defined()) CHECK(allclose(got[i], want[i], 1e-10, 1e-11));
  }
}

TEST_CASE("synchronised training repeats bit for bit and leaves no nodes and no bytes", "[syncbn]") {
  ON_EVERY_DEVICE(on);
  const auto train = [&on](int steps) {
    manual_seed(3);
    Net2d model;
    optim::SGD sgd(model.parameters(), {.lr = 0.01});
    DataParallel net(model, on.first(4), kSync);
    std::vector<double> losses;
    std::int64_t nodes = 0;
    std::size_t bytes = 0;
    for (int i = 0; i < steps; ++i) {
      sgd.zero_grad();
      {
        const Tensor loss = mse_loss(net(randn({7, 3, 2, 2}, kFloat64)), randn({7, 3, 2, 2}, kFloat64));
        loss.backward();
        losses.push_back(loss.item());
      }
      sgd.step();
      if (i == 4) {
        nodes = live_nodes();
        bytes = memory_stats(on(1)).allocated;
      }
    }
    CHECK(live_nodes() == nodes);
    CHECK(memory_stats(on(1)).allocated == bytes);
    return losses;
  };
  CHECK(train(200) == train(200));
}

TEST_CASE("the functional form and an empty input", "[syncbn]") {
  ON_EVERY_DEVICE(on);
  Net1d alone;
  Net1d twin;
  const Tensor x = randn({6, 3}, kFloat64);
  CHECK(close(data_parallel(twin, on.first(3), kSync, x).detach(), alone(x).detach()));
  const std::vector<double> mean = values(twin.norm.running_mean);
  CHECK(DataParallel(twin, on.first(2), kSync)(zeros({4, 3, 0}, kFloat64)).sizes() == Shape{4, 3, 0});
  CHECK(values(twin.norm.running_mean) == mean);
}

// ---------------------------------------------------------------- failures

namespace {

/// Chosen replicas throw, or return, before their BatchNorm.
struct Straying : nn::Module {
  nn::BatchNorm1d norm{2};
  std::set<std::size_t> broken, absent;
  Tensor forward(const Tensor& x) {
    const std::size_t i = parallel::current_replica().index;
    if (broken.contains(i)) throw std::out_of_range("broken " + std::to_string(i));
    return absent.contains(i) ? x : norm(x);
  }
  TANDEM_MODULE(Straying, norm)
};

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

struct Failure {
  std::size_t replica;
  std::string text;
  std::exception_ptr cause;
};

/// The ReplicaError that a call throws.
template <class F>
std::optional<Failure> failure_of(F&& call) {
  try {
    call();
  } catch (const ReplicaError& e) {
    return Failure{e.replica(), e.what(), dynamic_cast<const std::nested_exception&>(e).nested_ptr()};
  }
  return std::nullopt;
}

}  // namespace

TEST_CASE("a replica that throws before its BatchNorm fails the call with its own error", "[syncbn]") {
  ON_EVERY_DEVICE(on);
  Straying model;
  DataParallel net(model, on.first(4), kSync);
  const Tensor x = randn({8, 2});
  for (std::size_t i = 0; i < 4; ++i) {
    model.broken = {i};
    const auto e = failure_of([&] { net(x); });
    REQUIRE(e);
    CHECK(e->replica == i);
    CHECK(e->text == "replica " + std::to_string(i) + " of 4 on " + str(on(static_cast<int>(i))) +
                         ", in Straying, args[0] " + describe(zeros({2, 2}, kFloat32, on(static_cast<int>(i)))) +
                         ": broken " + std::to_string(i));
  }
  model.broken.clear();
  const std::vector<double> out = values(net(x).detach().sum({0}));
  for (const double sum : out) CHECK(sum == Approx(0).margin(1e-5));
}

TEST_CASE("a replica that skips a BatchNorm is named", "[syncbn]") {
  ON_EVERY_DEVICE(on);
  Straying model;
  DataParallel net(model, on.first(3), kSync);
  const Tensor x = randn({6, 2});
  model.absent = {1};
  const auto e = failure_of([&] { net(x); });
  REQUIRE(e);
  CHECK(e->replica == 0);
  CHECK(contains(e->text, "sync_batch_norm: replica 1 on " + str(on(1)) + " has returned"));
  model.broken = {2};
  const auto cause = failure_of([&] { net(x); });
  REQUIRE(cause);
  CHECK(cause->replica == 2);
  CHECK_FALSE(contains(cause->text, "has returned"));
  model.broken.clear();
  model.absent.clear();
  CHECK(net(x).sizes() == Shape{6, 2});
}

TEST_CASE("wrong inputs of synchronised BatchNorm are refused as on one device", "[syncbn]") {
  ON_EVERY_DEVICE(on);
  Straying model;
  DataParallel net(model, on.first(2), kSync);
  const auto e = failure_of([&] { net(zeros({4, 3})); });
  REQUIRE(e);
  CHECK_THROWS_AS(std::rethrow_exception(e->cause), ShapeError);
  CHECK(contains(e->text, "sync_batch_norm: wanted a weight of shape (3) for an input (2, 3), got (2)"));
}

namespace {
struct Recomputed : nn::Module {
  nn::BatchNorm1d norm{2};
  nn::Parameter w{ones({2})};
  Tensor forward(const Tensor& x) {
    return checkpoint([norm = norm](const std::vector<Tensor>& in) mutable { return norm(in[0]); }, {x * w});
  }
  TANDEM_MODULE(Recomputed, norm, w)
};
}  // namespace

TEST_CASE("replicas that cannot wait for each other get an error", "[syncbn]") {
  ON_EVERY_DEVICE(on);
  const Tensor x = randn({8, 2});
  const std::string why = "sync_batch_norm: replicas that run one after another";
  const auto apply_on = [&](const std::vector<Device>& devices) {
    Straying model;
    std::vector<Straying> replicas = parallel::replicate(model, devices);
    std::vector<std::tuple<Tensor>> inputs{{x.to(devices[0])}, {x.to(devices[1])}};
    const auto e = failure_of([&] { parallel::parallel_apply(replicas, inputs, devices, nullptr, true); });
    REQUIRE(e);
    CHECK(contains(e->text, why));
  };
  SECTION("in a worker") {
    parallel::run_on_devices({on(0), on(2)}, [&](std::size_t i) {
      if (i == 0) apply_on({on(0), on(1)});
    });
  }
  SECTION("twice on one device") { apply_on({on(0), on(0)}); }
  SECTION("recomputed in backward") {
    Recomputed model;
    DataParallel net(model, on.first(2), kSync);
    const Tensor out = net(x);
    CHECK_THROWS_WITH(out.sum().backward(), ContainsSubstring("sync_batch_norm: inside checkpoint()"));
  }
}

TEST_CASE("all_reduce adds in the order of replicas and refuses what does not fit", "[syncbn]") {
  ON_EVERY_DEVICE(on);
  const std::vector<Device> devices = on.first(3);
  Tensor x = tensor({1.0, 2.0}).requires_grad_();
  const std::vector<Tensor> parts = parallel::broadcast(x, devices);
  std::vector<Tensor> sums(3);
  parallel::run_on_devices(
      devices,
      [&](std::size_t i) {
        sums[i] = context().exchange->all_reduce("sum", {parts[i] * static_cast<double>(i + 1)})[0];
      },
      true);
  for (std::size_t i = 0; i < 3; ++i) {
    CHECK(sums[i].device() == devices[i]);
    CHECK(values(sums[i]) == std::vector<double>{6, 12});
  }
  (sums[1].to(on(0)) * tensor({1.0, 10.0})).sum().backward();
  CHECK(values(x.grad()) == std::vector<double>{6, 60});

  const auto uneven = failure_of([&] {
    parallel::run_on_devices(
        devices, [&](std::size_t i) { context().exchange->all_reduce("sum", std::vector<Tensor>(i < 2 ? 1 : 2, x)); },
        true);
  });
  REQUIRE(uneven);
  CHECK_THROWS_AS(std::rethrow_exception(uneven->cause), ValueError);
  const auto shapes = failure_of([&] {
    parallel::run_on_devices(
        devices, [&](std::size_t i) { context().exchange->all_reduce("sum", {zeros({i == 2 ? 2 : 1})}); }, true);
  });
  REQUIRE(shapes);
  CHECK_THROWS_AS(std::rethrow_exception(shapes->cause), ShapeError);
  bool exchange = true;
  parallel::run_on_devices(devices, [&](std::size_t i) {
    if (i == 0) exchange = context().exchange != nullptr;
  });
  CHECK_FALSE(exchange);
}

TEST_CASE("synchronised wrappers on the same devices in two threads finish with the right values", "[syncbn]") {
  ON_EVERY_DEVICE(on);
  const auto train = [&on](int seed) {
    const DefaultDeviceGuard device(on(0));
    Net1d model;
    optim::SGD sgd(model.parameters(), {.lr = 0.01});
    DataParallel net(model, on.first(4), kSync);
    const Tensor x = integers({8, 3}, seed).to(on(0)) * 0.25;
    for (int i = 0; i < 100; ++i) {
      sgd.zero_grad();
      (net(x) * x).sum().backward();
      sgd.step();
    }
    return values(model.w);
  };
  const std::vector<double> alone[2] = {train(1), train(2)};
  std::vector<double> together[2];
  std::thread a([&] { together[0] = train(1); });
  std::thread b([&] { together[1] = train(2); });
  a.join();
  b.join();
  CHECK(together[0] == alone[0]);
  CHECK(together[1] == alone[1]);
}
