// The cases of PyTorch's own tests of data parallelism, by their numbers or names, as far as they have a meaning here.

#include <map>
#include <optional>
#include <stdexcept>
#include <string>
#include <tuple>

#include "../helpers.h"

using namespace tandem;
using namespace tandem::test;
using parallel::data_parallel;
using parallel::DataParallel;

namespace {

struct BufferWithGrad : nn::Module {
  nn::Buffer tracked{tensor({2.0, 3.0}, kFloat64)}, fixed{tensor({5.0, 7.0}, kFloat64)};
  Tensor forward(const Tensor& x) { return x * tracked + fixed; }
  TANDEM_MODULE(BufferWithGrad, tracked, fixed)
};

}  // namespace

TEST_CASE("upstream-1: buffers that require a gradient get one", "[contract]") {
  ON_EVERY_DEVICE(on);
  BufferWithGrad model;
  model.tracked.requires_grad_();
  DataParallel net(model, on.first(2));
  const Tensor out = net(tensor({1.0, 2.0, 10.0, 20.0}, kFloat64).reshape({2, 2}));
  CHECK(values(out.detach()) == std::vector<double>{7, 13, 25, 67});
  out.sum().backward();
  CHECK(values(model.tracked.grad()) == std::vector<double>{11, 22});
  CHECK_FALSE(model.fixed.grad().defined());

  const Tensor x = tensor({1.0, 2.0, 10.0, 20.0}, kFloat64).reshape({2, 2});
  const TensorFunction squared = [&](const std::vector<Tensor>& in) {
    BufferWithGrad fresh;
    fresh.tracked = nn::Buffer(in[0]);
    const Tensor y = data_parallel(fresh, on.first(2), {}, x);
    return std::vector{y * y};
  };
  const std::vector<Tensor> buffer{tensor({2.0, 3.0}, kFloat64).requires_grad_()};
  CHECK(gradcheck(squared, buffer).error == "");
  CHECK(gradgradcheck(squared, buffer).error == "");
}

TEST_CASE("upstream-4: parallel_apply equals direct calls", "[contract]") {
  ON_EVERY_DEVICE(on);
  std::vector<nn::Linear> modules{nn::Linear(10, 5), nn::Linear(10, 5)};
  for (nn::Linear& m : modules) m.to(kFloat64);
  set_integers(modules[0]);
  modules[1].to(on(1));
  std::vector<std::tuple<Tensor>> inputs{{integers({2, 10})}, {integers({3, 10}, 1).to(on(1))}};
  const auto out = parallel::parallel_apply(modules, inputs, on.first(2));
  REQUIRE(out.size() == 2);
  for (std::size_t i = 0; i < 2; ++i) {
    CHECK(out[i].device() == on(static_cast<int>(i)));
    CHECK(equal(out[i].detach(), modules[i](std::get<0>(inputs[i])).detach()));
  }
}

namespace {
struct Throws : nn::Module {
  nn::Parameter w{ones({1})};
  Tensor forward(const Tensor&) { throw std::out_of_range("no such key: k"); }
  TANDEM_MODULE(Throws, w)
};
}  // namespace

TEST_CASE("upstream-6: an exception of a replica keeps its type, and is told with replica and device", "[contract]") {
  ON_EVERY_DEVICE(on);
  Throws model;
  DataParallel net(model, on.first(2));
  check_error<parallel::ReplicaError>([&] { net(ones({2})); }, {"replica 0", str(on(0)), "no such key: k"});
  try {
    net(ones({2}));
    FAIL("no error");
  } catch (const parallel::ReplicaError& e) {
    CHECK_THROWS_AS(std::rethrow_if_nested(e), std::out_of_range);
  }
}

namespace {
struct Product : nn::Module {
  nn::Parameter w{ones({1}, kFloat64)};
  Tensor forward(const Tensor& a, const Tensor& b, double f, const Tensor& c) {
    return (c.defined() ? a * b + c : a * b) * f * w;
  }
  TANDEM_MODULE(Product, w)
};
}  // namespace

TEST_CASE("upstream-7: several arguments, numbers and absent tensors, from the host", "[contract]") {
  ON_EVERY_DEVICE(on);
  Product model;
  Tensor a = integers({5, 5}, 1).to(cpu()).requires_grad_();
  Tensor b = integers({5, 5}, 2).to(cpu()).requires_grad_();
  for (const Tensor& c : {Tensor(), integers({5, 5}, 3).to(cpu())}) {
    const Tensor want = (c.defined() ? a.detach() * b.detach() + c : a.detach() * b.detach()) * 2.0;
    for (const int k : {1, 2}) {
      DataParallel net(model, on.first(k));
      a.zero_grad();
      b.zero_grad();
      const Tensor out = net(a, b, 2.0, c);
      CHECK(equal(out.detach().to(cpu()), want));
      CHECK(equal(data_parallel(model, on.first(k), {}, a, b, 2.0, c).detach().to(cpu()), want));
      out.sum().backward();
      CHECK(equal(a.grad(), b.detach() * 2));
      CHECK(equal(b.grad(), a.detach() * 2));
    }
  }
}

TEST_CASE("upstream-8: a small backward equals one device's", "[contract]") {
  ON_EVERY_DEVICE(on);
  nn::Linear model(10, 5);
  model.to(kFloat64);
  set_integers(model);
  const Tensor x = integers({20, 10});
  model(x).sum().backward();
  const Tensor want = model.weight.grad().clone();
  model.zero_grad();
  DataParallel(model, on.first(2))(x).sum().backward();
  CHECK(equal(model.weight.grad(), want));
  CHECK(values(model.bias.grad()) == std::vector<double>(5, 20));
}

TEST_CASE("upstream-9: every tensor of the module must be on the first device", "[contract]") {
  ON_EVERY_DEVICE(on);
  Mlp model;
  DataParallel net(model, on.first(2));
  const Tensor x = ones({2, 6});
  model.to(on(1));
  check_error<DeviceError>([&] { net(x); }, {"fc1.weight", str(on(0)), str(on(1))});
  model.fc1.to(on(0));
  check_error<DeviceError>([&] { net(x); }, {"fc2.weight", str(on(0)), str(on(1))});
  net.to(on(0));
  CHECK(net(x).device() == on(0));
}

TEST_CASE("upstream-10: a forward leaves nothing behind", "[contract]") {
  ON_EVERY_DEVICE(on);
  nn::Linear model(1, 1);
  DataParallel net(model, on.first(2));
  const Tensor x = ones({2, 1});
  net(x);
  const std::int64_t nodes = live_nodes();
  const std::size_t bytes = memory_stats(on(1)).allocated;
  for (int i = 0; i < 3; ++i) net(x);
  CHECK(live_nodes() == nodes);
  CHECK(memory_stats(on(1)).allocated == bytes);
}

TEST_CASE("upstream-11: replicas have the caller's grad mode", "[contract]") {
  ON_EVERY_DEVICE(on);
  Scale model;
  DataParallel net(model, on.first(2));
  const auto mode = [](Scale&, const Tensor&) { return parallel::PerReplica<bool>{{context().grad_enabled}}; };
  CHECK(net.invoke(mode, ones({2})).values == std::vector<bool>{true, true});
  const NoGradGuard no_grad;
  CHECK(net.invoke(mode, ones({2})).values == std::vector<bool>{false, false});
}

TEST_CASE("upstream-12: the order of devices and the place of the input do not matter", "[contract]") {
  ON_EVERY_DEVICE(on);
  const Tensor x = integers({20, 10}).to(on(1));
  for (const int home : {0, 1}) {
    nn::Linear model(10, 5);
    model.to(kFloat64);
    model.to(on(home));
    set_integers(model);
    const Tensor want = model(x.to(on(home))).detach();
    DataParallel net(model, {on(home), on(1 - home)});
    const Tensor out = net(x);
    CHECK(out.device() == on(home));
    CHECK(equal(out.detach(), want));
    out.sum().backward();
    CHECK(model.bias.grad().device() == on(home));
    CHECK(values(model.bias.grad()) == std::vector<double>(5, 20));
  }
}

TEST_CASE("upstream-13: an embedding's gradient is one device's", "[contract]") {
  ON_EVERY_DEVICE(on);
  nn::Embedding model(4, 2);
  DataParallel net(model, on.first(2));
  net(tensor({0, 1, 1, 3}).to(kInt64)).sum().backward();
  CHECK(values(model.weight.grad()) == std::vector<double>{1, 1, 2, 2, 0, 0, 1, 1});
}

TEST_CASE("upstream-14, upstream-15: nested arguments and results", "[contract]") {
  ON_EVERY_DEVICE(on);
  Scale model;
  DataParallel net(model, on.first(2));
  using Nested = std::tuple<Tensor, std::pair<std::vector<Tensor>, Tensor>>;
  const auto swap = [](Scale& m, const Nested& in) {
    const auto& [a, rest] = in;
    return Nested{rest.second, {{m(a), rest.first[0]}, a}};
  };
  const Tensor a = tensor({1.0, 2.0});
  const Tensor b = tensor({3.0, 4.0});
  const Tensor c = tensor({5.0, 6.0});
  const auto [first, rest] = net.invoke(swap, Nested{a, {{b}, c}});
  CHECK(values(first) == values(c));
  REQUIRE(rest.first.size() == 2);
  CHECK(values(rest.first[0]) == std::vector<double>{3, 6});
  CHECK(values(rest.first[1]) == values(b));
  CHECK(values(rest.second) == values(a));
}

namespace {
struct NoInput : nn::Module {
  nn::Parameter w{ones({2, 3})};
  Tensor forward() { return w * 1; }
  TANDEM_MODULE(NoInput, w)
};
}  // namespace

TEST_CASE("upstream-16: without arguments one replica runs", "[contract]") {
  ON_EVERY_DEVICE(on);
  NoInput model;
  for (const int k : {1, 2}) {
    DataParallel net(model, on.first(k));
    CHECK(equal(net().detach(), ones({2, 3})));
    CHECK(equal(data_parallel(model, on.first(k), {}).detach(), ones({2, 3})));
  }
}

TEST_CASE("upstream-18: a gradient penalty built in a function", "[contract]") {
  ON_EVERY_DEVICE(on);
  nn::Linear model(4, 1);
  DataParallel net(model, on.first(2));
  const auto penalty = [&] {
    Tensor x = ones({2, 4}).requires_grad_();
    return grad({net(x)}, {x}, {ones({2, 1})}, {.create_graph = true})[0].mean();
  };
  penalty().backward();
  CHECK(values(model.weight.grad()) == std::vector<double>(4, 0.25));
  CHECK_FALSE(model.bias.grad().defined());
}

TEST_CASE("upstream-19, upstream-20: half of a scattered tensor's gradient", "[contract]") {
  ON_EVERY_DEVICE(on);
  for (const Device home : {cpu(), on(0)}) {
    Tensor x = integers({4, 4}).to(home).requires_grad_();
    const auto halves = parallel::scatter(x, on.first(2));
    CHECK(equal(halves[1].detach().to(home), x.detach().narrow(0, 2, 2)));
    halves[0].backward(full({2, 4}, 2, kFloat64));
    CHECK(x.grad().device() == home);
    CHECK(equal(x.grad().to(on(0)), cat({full({2, 4}, 2, kFloat64), zeros({2, 4}, kFloat64)})));
  }
}

TEST_CASE("upstream-22, upstream-23: gather to the host and to a device", "[contract]") {
  ON_EVERY_DEVICE(on);
  for (const Device home : {cpu(), on(0)}) {
    Tensor a = scalar_tensor(2, kFloat64).requires_grad_();
    Tensor b = scalar_tensor(3, kFloat64, on(1)).requires_grad_();
    const Tensor out = parallel::gather(std::vector{a, b}, home);
    CHECK(out.device() == home);
    CHECK(values(out.detach()) == std::vector<double>{2, 3});
    out.backward(tensor({5.0, 7.0}, kFloat64).to(home));
    CHECK(a.grad().item() == 5);
    CHECK(b.grad().item() == 7);
  }
}

TEST_CASE("upstream-25, upstream-26: replicas with parameters and buffers equal the module", "[contract]") {
  ON_EVERY_DEVICE(on);
  nn::BatchNorm2d model(3);
  model.running_mean.fill_(4);
  const auto replicas = parallel::replicate(model, on.first(3));
  for (int i = 0; i < 3; ++i) {
    const nn::BatchNorm2d& r = replicas[static_cast<std::size_t>(i)];
    for (const auto& [name, t] : r.state_dict()) {
      INFO(name);
      CHECK(t.device() == on(i));
    }
    CHECK(values(r.running_mean) == std::vector<double>{4, 4, 4});
    CHECK(values(r.weight.detach()) == std::vector<double>{1, 1, 1});
    CHECK(r.num_batches_tracked.dtype() == kInt64);
  }
}

TEST_CASE("upstream-27: zero_grad inside forward is refused", "[contract]") {
  ON_EVERY_DEVICE(on);
  Scale model;
  DataParallel net(model, on.first(2));
  const auto clears = [](Scale& m, const Tensor& x) {
    m.zero_grad();
    return x;
  };
  check_error<parallel::ReplicaError>([&] { net.invoke(clears, ones({2})); }, {"zero_grad", "w is not a leaf"});
}

TEST_CASE("upstream-29: the state of a replica can be loaded into another module", "[contract]") {
  ON_EVERY_DEVICE(on);
  Mlp model, other;
  for (const bool tracked : {true, false}) {
    std::optional<NoGradGuard> no_grad;
    if (!tracked) no_grad.emplace();
    set_integers(model);
    const auto replicas = parallel::replicate(model, on.first(2));
    other.load_state_dict(replicas[1].state_dict());
    CHECK(values(other.fc2.weight.detach()) == values(model.fc2.weight.detach()));
  }
}

namespace {
struct Lists : nn::Module {
  std::vector<nn::Parameter> list{tensor({2.0}), tensor({3.0})};
  std::map<std::string, nn::Parameter> named{{"a", tensor({5.0})}};
  Tensor forward(const Tensor& x) {
    for (const Tensor& p : parameters()) {
      if (p.is_leaf() || !p.requires_grad() || p.device() != x.device()) throw std::logic_error("not the replica's");
    }
    return x * list[0] * list[1] * named.at("a");
  }
  TANDEM_MODULE(Lists, list, named)
};
}  // namespace

TEST_CASE("upstream-31: lists and maps of parameters are the replica's", "[contract]") {
  ON_EVERY_DEVICE(on);
  Lists model;
  DataParallel net(model, on.first(2));
  const Tensor out = net(ones({2}));
  CHECK(values(out.detach()) == std::vector<double>{30, 30});
  out.sum().backward();
  CHECK(model.list[0].grad().item() == 30);
  CHECK(model.named.at("a").grad().item() == 12);
}

TEST_CASE("upstream-17: the list of devices and the output device are given as devices", "[contract]") {
  ON_EVERY_DEVICE(on);
  Scale model;
  const Device second{on(0).type, 1};
  DataParallel net(model, {on(0), second}, {.output_device = second});
  CHECK(net.device_ids() == on.first(2));
  CHECK(net.output_device() == on(1));
  CHECK(values(net(tensor({1.0, 2.0}))) == std::vector<double>{3, 6});
}

TEST_CASE("upstream-24: maps of different size are refused", "[contract]") {
  const parallel::GatherPlan plan{};
  std::vector<std::map<std::string, Tensor>> maps{{{"a", ones({1})}}, {{"a", ones({1})}, {"b", ones({1})}}};
  check_error<ValueError>([&] { parallel::gather_tree(maps, plan); }, {"out"});
}

TEST_CASE("upstream-30: gradients of convolutions, twice, are one device's", "[contract]") {
  ON_EVERY_DEVICE(on);
  nn::Sequential model{nn::Conv2d(2, 3, 2), nn::Conv2d(3, 2, 1)};
  model.to(kFloat64);
  set_integers(model);
  const Tensor x = integers({16, 2, 3, 3});
  model(x).sum().backward();
  std::vector<Tensor> want;
  for (const Tensor& p : model.parameters()) want.push_back(p.grad().clone());
  DataParallel net(model, on.first(2));
  for (int step = 0; step < 2; ++step) {
    net.zero_grad();
    net(x).sum().backward();
    for (std::size_t i = 0; i < want.size(); ++i) CHECK(equal(model.parameters()[i].grad(), want[i]));
  }
}

TEST_CASE("upstream-32: a module's output equals the direct call, in every floating dtype", "[contract]") {
  ON_EVERY_DEVICE(on);
  for (const DType dtype : {kFloat32, kFloat64}) {
    Mlp model;
    model.to(dtype);
    set_integers(model);
    const Tensor x = integers({4, 6}, 1, dtype);
    const Tensor out = DataParallel(model, on.first(2))(x);
    CHECK(out.device() == on(0));
    CHECK(out.dtype() == dtype);
    CHECK(equal(out.detach(), model(x).detach()));
  }
}

TEST_CASE("upstream-33, upstream-34, upstream-35, upstream-36: empty containers next to a tensor", "[contract]") {
  ON_EVERY_DEVICE(on);
  Scale model;
  DataParallel net(model, on.first(2));
  const auto ignores = [](Scale& m, const Tensor& x, const std::vector<Tensor>&, const std::map<std::string, Tensor>&,
                          const std::tuple<>&) { return m(x); };
  const Tensor out =
      net.invoke(ignores, tensor({1.0, 2.0}), std::vector<Tensor>{}, std::map<std::string, Tensor>{}, std::tuple<>{});
  CHECK(out.device() == on(0));
  CHECK(values(out) == std::vector<double>{3, 6});
}
