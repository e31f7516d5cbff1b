// DataParallel as a whole: what one device would give, on several.

#include <array>
#include <map>
#include <optional>
#include <stdexcept>
#include <string>

#include "helpers.h"

using namespace tandem;
using namespace tandem::test;
using parallel::data_parallel;
using parallel::DataParallel;

namespace {

struct Run {
  Tensor out;
  std::vector<Tensor> grads;
};

/// Output and gradients of sum(out * out) on the devices, or, without devices, of the plain module.
template <class M, class... Args>
Run run(M& model, const std::vector<Device>& devices, const Args&... args) {
  model.zero_grad();
  Tensor out;
  if (devices.empty()) {
    out = model(args...);
  } else {
    DataParallel net(model, devices);
    out = net(args...);
  }
  sum(out * out).backward();
  Run r{out.detach().clone(), {}};
  for (const Tensor& p : model.parameters()) r.grads.push_back(p.grad().defined() ? p.grad().clone() : Tensor());
  return r;
}

}  // namespace

TEST_CASE("any number of devices and any batch give exactly one device's results on integers", "[dp]") {
  ON_EVERY_DEVICE(on);
  Mlp model;
  model.to(kFloat64);
  set_integers(model);
  for (const std::int64_t batch : {1, 2, 3, 5, 8, 9}) {
    const Tensor x = integers({batch, 6}, 4);
    const Run one = run(model, {}, x);
    for (const int k : {1, 2, 3, 4}) {
      INFO("batch " << batch << " on " << k);
      const Run many = run(model, on.first(k), x);
      CHECK(equal(many.out, one.out));
      for (std::size_t i = 0; i < one.grads.size(); ++i) CHECK(equal(many.grads[i], one.grads[i]));
    }
  }
}

TEST_CASE("weights are updated: w = 3, x = [1, 2], lr 0.1 gives 2.7", "[dp]") {
  ON_EVERY_DEVICE(on);
  Scale model;
  optim::SGD sgd(model.parameters(), {.lr = 0.1});
  DataParallel net(model, on.first(2));
  const Tensor x = tensor({1.0, 2.0});
  net(x).sum().backward();
  CHECK(model.w.grad().item() == 3);
  sgd.step();
  CHECK(model.w.item<float>() == 2.7F);
  CHECK(values(net(x)) == values(x * 2.7F));
}

TEST_CASE("an empty batch runs one replica and keeps the result's shape", "[dp]") {
  ON_EVERY_DEVICE(on);
  Mlp model;
  DataParallel net(model, on.first(3));
  const Tensor out = net(zeros({0, 6}));
  CHECK(out.sizes() == Shape{0, 3});
  sum(out).backward();
  CHECK(equal(model.fc1.weight.grad(), zeros({8, 6})));
}

namespace {
struct Mean : nn::Module {
  nn::Parameter w{ones({1})};
  Tensor forward(const Tensor& x) { return (x * w).mean(); }
  TANDEM_MODULE(Mean, w)
};
}  // namespace

TEST_CASE("scalars become a vector with one element per replica, for every number of devices", "[dp]") {
  ON_EVERY_DEVICE(on);
  Mean model;
  const Tensor x = tensor({1.0, 2.0, 3.0, 6.0});
  CHECK(values(DataParallel(model, on.first(1))(x)) == std::vector<double>{3});
  CHECK(values(DataParallel(model, on.first(2))(x)) == std::vector<double>{1.5, 4.5});
  CHECK(values(DataParallel(model, on.first(4))(x)) == std::vector<double>{1, 2, 3, 6});
}

TEST_CASE("the output device can be any device", "[dp]") {
  ON_EVERY_DEVICE(on);
  Mlp model;
  const Tensor x = randn({4, 6});
  const Tensor want = model(x).detach();
  for (const int home : {0, 1, 3}) {
    DataParallel net(model, on.first(2), {.output_device = on(home)});
    const Tensor out = net(x);
    CHECK(out.device() == on(home));
    CHECK(allclose(out.detach().to(on(0)), want));
  }
}

namespace {
struct Rows : nn::Module {
  nn::Parameter w{from_vector(std::vector<double>{1, 2, 3}, {3, 1})};
  Tensor forward(const Tensor& x) { return x * w; }
  TANDEM_MODULE(Rows, w)
};
}  // namespace

TEST_CASE("another dimension can be the batch", "[dp]") {
  ON_EVERY_DEVICE(on);
  Rows model;
  const Tensor x = integers({3, 5}, 2);
  for (const std::int64_t dim : {1, -1}) {
    DataParallel net(model, on.first(2), {.dim = dim});
    CHECK(equal(net(x).detach(), model(x).detach()));
  }
}

namespace {

struct Named {
  Tensor a, b;
  double factor = 1;
  TANDEM_TREE(Named, a, b, factor)
};

using Tree = std::map<std::string, std::vector<std::pair<Tensor, std::optional<Tensor>>>>;

struct TreeModel : nn::Module {
  nn::Parameter w{ones({1}, kFloat64)};
  std::tuple<Tensor, Tree> forward(const Named& in, const std::array<Tensor, 2>& more, Tensor scale,
                                   const std::string& mode) {
    const Tensor sum = (in.a + in.b) * in.factor * w;
    if (mode == "plain") return {sum, {}};
    return {sum, {{"x", {{more[0] * scale, more[1]}, {more[1], std::nullopt}}}}};
  }
  TANDEM_MODULE(TreeModel, w)
};

}  // namespace

TEST_CASE("arguments and results are trees; 0-dim tensors and other values go to every replica", "[dp]") {
  ON_EVERY_DEVICE(on);
  TreeModel model;
  DataParallel net(model, on.first(2));
  const Tensor a = integers({5, 2}, 1);
  const Tensor b = integers({5, 2}, 2);
  Tensor scale = scalar_tensor(3, kFloat64).requires_grad_();
  const auto [out, tree] = net(Named{.a = a, .b = b, .factor = 2}, std::array{a, b}, scale, std::string("full"));
  CHECK(equal(out.detach(), (a + b) * 2));
  const auto& list = tree.at("x");
  REQUIRE(list.size() == 2);
  CHECK(equal(list[0].first.detach(), a * 3));
  CHECK(equal(list[0].second.value(), b));
  CHECK_FALSE(list[1].second.has_value());
  list[0].first.sum().backward();
  CHECK(scale.grad().item() == a.sum().item());
}

namespace {
struct Two : nn::Module {
  int calls = 0;
  int* counter = &calls;
  nn::Parameter w{ones({1})};
  Tensor forward(const Tensor& x, const Tensor&) {
    ++*counter;
    return x * w;
  }
  TANDEM_MODULE(Two, w)
};
}  // namespace

TEST_CASE("tensors of different batch size are refused before any replica runs", "[dp]") {
  ON_EVERY_DEVICE(on);
  Two model;
  DataParallel net(model, on.first(2));
  try {
    net(zeros({5, 1}), zeros({1, 1}));
    FAIL("no error");
  } catch (const ShapeError& e) {
    const std::string text = e.what();
    CHECK(text.find("args[0]") != std::string::npos);
    CHECK(text.find("args[1]") != std::string::npos);
    CHECK(text.find("5") != std::string::npos);
  }
  CHECK(model.calls == 0);
}

TEST_CASE("buffers of replica 0 are the module's", "[dp]") {
  ON_EVERY_DEVICE(on);
  nn::BatchNorm1d model(2);
  DataParallel net(model, on.first(2));
  const Tensor x = from_vector(std::vector<float>{0, 0, 2, 4, 100, 100, 100, 104}, {4, 2});
  net(x);
  // Statistics of the first chunk alone: means 1 and 2, unbiased variances 2 and 8.
  CHECK(allclose(model.running_mean, tensor({0.1, 0.2})));
  CHECK(allclose(model.running_var, tensor({0.9 + 0.2, 0.9 + 0.8})));
  CHECK(model.num_batches_tracked.item<std::int64_t>() == 1);
  net(x);
  CHECK(model.num_batches_tracked.item<std::int64_t>() == 2);
}

namespace {
struct Tied : nn::Module {
  nn::Linear a{3, 3}, b{3, 3};
  Tied() { b.weight = a.weight; }
  Tensor forward(const Tensor& x) {
    if (!a.weight.is_same(b.weight)) throw std::logic_error("the tie is lost");
    return b(a(x));
  }
  TANDEM_MODULE(Tied, a, b)
};
}  // namespace

TEST_CASE("tied parameters stay tied and get the sum of their gradients", "[dp]") {
  ON_EVERY_DEVICE(on);
  Tied model;
  model.to(kFloat64);
  set_integers(model);
  const Tensor x = integers({4, 3}, 5);
  const Run one = run(model, {}, x);
  const Run two = run(model, on.first(2), x);
  REQUIRE(one.grads.size() == 3);
  for (std::size_t i = 0; i < 3; ++i) CHECK(equal(one.grads[i], two.grads[i]));
}

namespace {
struct Partial : nn::Module {
  nn::Linear used{3, 3}, unused{3, 3}, frozen{3, 3};
  std::vector<int>* seen = nullptr;
  Tensor forward(const Tensor& x) {
    for (const Tensor& p : parameters()) {
      if (p.device() != x.device()) throw std::logic_error("a parameter of another device");
    }
    if (frozen.weight.requires_grad()) throw std::logic_error("not frozen");
    if (used.weight.is_leaf()) throw std::logic_error("a leaf");
    return frozen(used(x));
  }
  TANDEM_MODULE(Partial, used, unused, frozen)
};
}  // namespace

TEST_CASE("parameters: frozen ones cost nothing, unused ones get no gradient, forward sees its own", "[dp]") {
  ON_EVERY_DEVICE(on);
  Partial model;
  model.frozen.requires_grad_(false);
  DataParallel net(model, on.first(2));
  net(ones({4, 3})).sum().backward();
  CHECK(model.used.weight.grad().defined());
  CHECK_FALSE(model.unused.weight.grad().defined());
  CHECK_FALSE(model.frozen.weight.grad().defined());
  CHECK(model.frozen.weight.is_leaf());
}

TEST_CASE("gradients accumulate over several backwards", "[dp]") {
  ON_EVERY_DEVICE(on);
  Scale model;
  DataParallel net(model, on.first(2));
  for (int i = 1; i <= 3; ++i) {
    net(tensor({1.0, 2.0})).sum().backward();
    CHECK(model.w.grad().item() == 3 * i);
  }
}

TEST_CASE("changes of the module between calls are picked up", "[dp]") {
  ON_EVERY_DEVICE(on);
  Mlp model;
  model.to(kFloat64);
  set_integers(model);
  DataParallel net(model, on.first(2));
  const Tensor x = integers({4, 6}, 2);
  CHECK(equal(net(x).detach(), model(x).detach()));
  SECTION("values") {
    const NoGradGuard no_grad;
    model.fc1.weight.mul_(2);
    CHECK(equal(net(x), model(x)));
  }
  SECTION("load_state_dict") {
    Mlp other;
    other.to(kFloat64);
    model.load_state_dict(other.state_dict());
    CHECK(allclose(net(x).detach(), other(x).detach()));
  }
  SECTION("frozen") {
    model.fc1.requires_grad_(false);
    model.zero_grad();
    net(x).sum().backward();
    CHECK_FALSE(model.fc1.weight.grad().defined());
    CHECK(model.fc2.weight.grad().defined());
  }
  SECTION("a layer replaced") {
    model.fc2 = nn::Linear(8, 5);
    model.to(kFloat64);
    CHECK(allclose(net(x).detach(), model(x).detach()));
    CHECK(net(x).size(1) == 5);
  }
  SECTION("another dtype") {
    model.to(kFloat32);
    CHECK(net(x.to(kFloat32)).dtype() == kFloat32);
  }
  SECTION("moved away") {
    model.to(on(1));
    try {
      net(x);
      FAIL("no error");
    } catch (const DeviceError& e) {
      const std::string text = e.what();
      CHECK(text.find("fc1.weight") != std::string::npos);
      CHECK(text.find(str(on(1))) != std::string::npos);
      CHECK(text.find(str(on(0))) != std::string::npos);
    }
    model.to(on(0));
    CHECK(equal(net(x).detach(), model(x).detach()));
  }
}

TEST_CASE("hooks run once per replica and see its index and device", "[dp]") {
  ON_EVERY_DEVICE(on);
  Mlp model;
  std::mutex mutex;
  std::map<std::size_t, std::pair<Device, std::int64_t>> seen;
  model.register_forward_hook([&](nn::Module&, const std::vector<Tensor>& in, std::vector<Tensor>& out) {
    const auto replica = parallel::current_replica();
    const std::scoped_lock lock(mutex);
    CHECK(in[0].device() == replica.device);
    CHECK(out[0].device() == replica.device);
    seen[replica.index] = {replica.device, in[0].size(0)};
  });
  DataParallel net(model, on.first(4));
  net(ones({5, 6}));
  REQUIRE(seen.size() == 3);
  CHECK(seen[0] == std::pair(on(0), std::int64_t{2}));
  CHECK(seen[1] == std::pair(on(1), std::int64_t{2}));
  CHECK(seen[2] == std::pair(on(2), std::int64_t{1}));
}

namespace {

struct Failing : nn::Module {
  nn::Parameter w{ones({1})};
  std::vector<std::size_t> bad;
  Tensor forward(const Tensor& x) {
    const std::size_t i = parallel::current_replica().index;
    for (std::size_t b : bad) {
      if (b == i) throw std::out_of_range("broken " + std::to_string(i));
    }
    return x * w;
  }
  TANDEM_MODULE(Failing, w)
};

}  // namespace

TEST_CASE("the failure of the lowest replica comes out, the others are told, and the next call works", "[dp]") {
  ON_EVERY_DEVICE(on);
  Failing model;
  DataParallel net(model, on.first(4));
  const Tensor x = ones({4});
  net(x);
  model.bad = {3, 1};
  const std::int64_t nodes = live_nodes();
  const std::size_t bytes = memory_stats(on(3)).allocated;
  for (int i = 0; i < 20; ++i) {
    try {
      net(x);
      FAIL("no error");
    } catch (const parallel::ReplicaError& e) {
      CHECK(e.replica() == 1);
      CHECK(e.device() == on(1));
      const std::string text = e.what();
      const std::string given = ", in Failing, args[0] " + describe(zeros({1}, kFloat32, on(1)));
      CHECK(text.find("replica 1 of 4 on " + str(on(1)) + given + ": broken 1") != std::string::npos);
      CHECK(text.find("replica 3 on " + str(on(3)) + " failed too, in Failing, args[0]") != std::string::npos);
      CHECK_THROWS_AS(std::rethrow_if_nested(e), std::out_of_range);
    }
  }
  CHECK(live_nodes() == nodes);
  CHECK(memory_stats(on(3)).allocated == bytes);
  model.bad.clear();
  CHECK(values(net(x)) == values(x));
}

namespace {
struct Mode : nn::Module {
  nn::Parameter w{ones({1})};
  bool wanted = true;
  Tensor forward(const Tensor& x) {
    if (context().grad_enabled != wanted) throw std::logic_error("wrong grad mode");
    return x * w;
  }
  TANDEM_MODULE(Mode, w)
};
}  // namespace

TEST_CASE("no_grad reaches the replicas", "[dp]") {
  ON_EVERY_DEVICE(on);
  Mode model;
  DataParallel net(model, on.first(2));
  CHECK(net(ones({2})).requires_grad());
  const NoGradGuard no_grad;
  model.wanted = false;
  CHECK_FALSE(net(ones({2})).requires_grad());
  CHECK(model.w.requires_grad());
}

TEST_CASE("double backward goes through all parts: a gradient penalty", "[dp]") {
  ON_EVERY_DEVICE(on);
  // mean over out of d out / d x is the weights themselves; its gradient is 1 / 4 for each of 4 weights, none for the
  // bias.
  nn::Linear model(4, 1);
  Tensor x = ones({2, 4}).requires_grad_();
  DataParallel net(model, on.first(2));
  const Tensor out = net(x);
  const Tensor gx = grad({out}, {x}, {ones({2, 1})}, {.create_graph = true})[0];
  gx.mean().backward();
  CHECK(values(model.weight.grad()) == std::vector<double>{0.25, 0.25, 0.25, 0.25});
  CHECK_FALSE(model.bias.grad().defined());
}

namespace {
struct Drop : nn::Module {
  nn::Dropout drop{0.5};
  Tensor forward(const Tensor& x) { return drop(x); }
  TANDEM_MODULE(Drop, drop)
};
}  // namespace

TEST_CASE("dropout masks differ between replicas and repeat with the seed", "[dp]") {
  ON_EVERY_DEVICE(on);
  Drop model;
  DataParallel net(model, on.first(2));
  manual_seed(5);
  const Tensor first = net(ones({64, 1}));
  manual_seed(5);
  CHECK(equal(net(ones({64, 1})), first));
  CHECK_FALSE(equal(first.narrow(0, 0, 32), first.narrow(0, 32, 32)));
}

TEST_CASE("the functional form and rvalue modules give the same", "[dp]") {
  ON_EVERY_DEVICE(on);
  Mlp model;
  const Tensor x = randn({5, 6});
  const Tensor want = model(x).detach();
  CHECK(allclose(data_parallel(model, on.first(2), {}, x).detach(), want));
  DataParallel<Mlp> owner(Mlp(model), on.first(3));
  CHECK(allclose(owner(x).detach(), want));
  data_parallel(model, on.first(2), {}, x).sum().backward();
  CHECK(model.fc1.weight.grad().defined());
}

TEST_CASE("parallel_apply and replicate are useful alone", "[dp]") {
  ON_EVERY_DEVICE(on);
  nn::Linear model(10, 5);
  const std::vector<nn::Linear> replicas = parallel::replicate(model, on.first(2));
  CHECK(replicas[0].weight.data_ptr() == model.weight.data_ptr());
  CHECK(replicas[1].weight.device() == on(1));
  std::vector<nn::Linear> modules = replicas;
  std::vector<std::tuple<Tensor>> inputs{{ones({2, 10})}, {ones({2, 10}, kFloat32, on(1))}};
  const auto out = parallel::parallel_apply(modules, inputs, on.first(2));
  REQUIRE(out.size() == 2);
  CHECK(out[1].device() == on(1));
  CHECK(allclose(out[1].detach().to(on(0)), model(ones({2, 10})).detach()));
}

TEST_CASE("state passes through without a prefix", "[dp]") {
  ON_EVERY_DEVICE(on);
  Mlp model;
  DataParallel net(model, on.first(2));
  CHECK(net.state_dict()[0].first == "fc1.weight");
  net.eval();
  CHECK_FALSE(model.fc1.training);
  CHECK(net.parameters()[0].is_same(model.fc1.weight));
}

TEST_CASE("bad device lists are refused", "[dp]") {
  ON_EVERY_DEVICE(on);
  Mlp model;
  CHECK_THROWS_AS(DataParallel(model, {on(0), on(99)}), DeviceError);
  CHECK_THROWS_AS(DataParallel(model, {cpu(-1)}), DeviceError);
  CHECK_THROWS_AS(DataParallel(model, on.first(2), {.output_device = on(99)}), DeviceError);
  CHECK_THROWS_AS(data_parallel(model, {}, {}, ones({2, 6})), ValueError);
  CHECK(DataParallel(model).device_ids().size() == static_cast<std::size_t>(device_count(on(0).type)));
}
