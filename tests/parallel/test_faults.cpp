// Bad input and faults inside replicas: one clear error, nothing half done, and the next call works.

#include <sys/wait.h>
#include <unistd.h>

#include <functional>
#include <new>
#include <thread>

#include "../child.h"
#include "helpers.h"

using namespace tandem;
using namespace tandem::test;
using parallel::DataParallel;
using parallel::ReplicaError;

// Sanitizers end the program when an allocation is too large, unless told otherwise.
extern "C" const char* __asan_default_options() { return "allocator_may_return_null=1"; }
extern "C" const char* __tsan_default_options() { return "allocator_may_return_null=1"; }

namespace {

/// y = x w, and whatever a test wants done in forward.
struct Probe : nn::Module {
  nn::Parameter w{tensor({3.0})};
  nn::Buffer seen{zeros({1})};
  std::function<Tensor(Probe&, const Tensor&)> act;
  Tensor forward(const Tensor& x) { return act ? act(*this, x) : x * w; }
  TANDEM_MODULE(Probe, w, seen)
};

std::size_t replica() { return parallel::current_replica().index; }

/// The module is as it was, and a step gives the right gradient.
void check_intact(Probe& model, DataParallel<Probe>& net, double w = 3) {
  model.act = nullptr;
  model.zero_grad();
  CHECK(model.w.item() == w);
  const Tensor x = tensor({1.0, 2.0, 4.0}).to(model.w.device());
  const Tensor y = net(x);
  CHECK(values(y) == std::vector<double>{w, 2 * w, 4 * w});
  y.sum().backward();
  CHECK(model.w.grad().item() == 7);
}

}  // namespace

TEST_CASE("faults: what backward needs was changed inside a replica", "[faults]") {
  ON_EVERY_DEVICE(on);
  Probe model;
  DataParallel net(model, on.first(2));
  for (const bool through_view : {false, true}) {
    model.act = [through_view](Probe& m, const Tensor& x) {
      Tensor y = exp(x * m.w);
      const NoGradGuard no_grad;
      if (replica() == 1) {
        if (through_view) {
          y.narrow(0, 0, 1).mul_(2);
        } else {
          y.mul_(2);
        }
      }
      return y;
    };
    const Tensor y = net(ones({4}));
    check_error<AutogradError>([&] { y.sum().backward(); }, {"exp", "version"});
    check_intact(model, net);
  }
}

TEST_CASE("faults: in-place changes on the tape of parameters and chunks", "[faults]") {
  ON_EVERY_DEVICE(on);
  for (const int k : {1, 3}) {
    Probe model;
    DataParallel net(model, on.first(k));
    const Tensor x = ones({3}).requires_grad_();
    model.act = [](Probe& m, const Tensor& t) {
      m.w.mul_(2);
      return t * m.w;
    };
    check_error<ReplicaError>([&] { net(x); }, {"replica 0", "mul_", "broadcast", "in place"});
    check_intact(model, net);
    model.act = [](Probe& m, Tensor t) { return t.add_(1) * m.w; };
    check_error<ReplicaError>([&] { net(x); }, {"replica 0", "add_", "scatter", "in place"});
    CHECK(values(x.detach()) == std::vector<double>{1, 1, 1});
    check_intact(model, net);
    model.act = [](Probe& m, const Tensor& t) {
      m.seen.add_(1);
      const NoGradGuard no_grad;
      m.w.mul_(2);
      return t * m.w;
    };
    net(x);
    CHECK(model.seen.item() == 1);
    check_intact(model, net, 6);
  }
}

TEST_CASE("faults: backward twice", "[faults]") {
  ON_EVERY_DEVICE(on);
  Probe model;
  DataParallel net(model, on.first(2));
  const Tensor loss = net(tensor({1.0, 2.0})).sum();
  loss.backward({}, true);
  CHECK(model.w.grad().item() == 3);
  loss.backward();
  CHECK(model.w.grad().item() == 6);
  check_error<AutogradError>([&] { loss.backward(); }, {"freed", "retain_graph"});
  CHECK(model.w.grad().item() == 6);
  check_intact(model, net);
}

TEST_CASE("faults: wrong gradients, and results without a graph", "[faults]") {
  ON_EVERY_DEVICE(on);
  Probe model;
  DataParallel net(model, on.first(2));
  const Tensor y = net(ones({4}));
  check_error<AutogradError>([&] { y.backward(); }, {"(4)", "needs a gradient"});
  check_error<ShapeError>([&] { y.backward(ones({3})); }, {"(3)", "(4)"});
  check_error<DTypeError>([&] { y.backward(ones({4}, kFloat64)); }, {"float64", "float32"});
  check_error<DeviceError>([&] { y.backward(ones({4}, kFloat32, on(1))); }, {str(on(1)), str(on(0))});
  {
    const NoGradGuard no_grad;
    const Tensor off = net(ones({4}));
    CHECK_FALSE(off.requires_grad());
    check_error<AutogradError>([&] { off.sum().backward(); }, {"needs no gradient"});
  }
  CHECK_FALSE(model.w.grad().defined());
  check_intact(model, net);
}

TEST_CASE("faults: a parameter that every replica uses a hundred times", "[faults]") {
  ON_EVERY_DEVICE(on);
  Probe model;
  DataParallel net(model, on.first(4));
  model.act = [](Probe& m, const Tensor& x) {
    Tensor sum = x * m.w;
    for (int i = 1; i < 100; ++i) sum = sum + x * m.w;
    return sum;
  };
  net(tensor({1.0, 2.0, 3.0, 4.0})).sum().backward();
  CHECK(model.w.grad().item() == 1000);
}

TEST_CASE("faults: hooks that throw, change shapes, remove themselves, run backward", "[faults]") {
  ON_EVERY_DEVICE(on);
  Probe model;
  DataParallel net(model, on.first(3));
  const auto with_hook = [&](const std::function<Tensor(const Tensor&)>& hook) {
    model.act = [hook](Probe& m, const Tensor& x) {
      Tensor y = x * m.w;
      if (replica() == 1) y.register_hook(hook);
      return y;
    };
    return net(tensor({1.0, 2.0, 4.0})).sum();
  };
  const Tensor throws = with_hook([](const Tensor&) -> Tensor { throw std::out_of_range("not today"); });
  CHECK_THROWS_AS(throws.backward(), std::out_of_range);
  check_intact(model, net);

  const Tensor reshapes = with_hook([](const Tensor& g) { return cat({g, g}, 0); });
  check_error<ShapeError>([&] { reshapes.backward(); }, {"hook", "(2)", "(1)"});
  check_intact(model, net);

  model.zero_grad();
  auto calls = std::make_shared<std::atomic<int>>(0);
  model.act = [calls](Probe& m, const Tensor& x) {
    Tensor y = x * m.w;
    auto handle = std::make_shared<HookHandle>();
    *handle = y.register_hook([calls, handle](const Tensor& g) {
      ++*calls;
      handle->remove();
      return g * 2;
    });
    return y;
  };
  const Tensor doubles = net(tensor({1.0, 2.0, 4.0})).sum();
  doubles.backward({}, true);
  CHECK(model.w.grad().item() == 14);
  CHECK(*calls == 3);
  doubles.backward();  // without the hooks
  CHECK(model.w.grad().item() == 14 + 7);
  CHECK(*calls == 3);

  model.zero_grad();
  Tensor again;
  again = with_hook([&again](const Tensor& g) {
    again.backward({}, true);
    return g;
  });
  CHECK_THROWS_AS(again.backward({}, true), AutogradError);
  check_intact(model, net);

  Tensor other = tensor({5.0}).requires_grad_();
  const Tensor inner = with_hook([&other](const Tensor& g) {
    const EnableGradGuard recording;
    (other * other).sum().backward();
    return g;
  });
  inner.backward();
  CHECK(other.grad().item() == 10);
  CHECK(model.w.grad().item() == 7 + 7);  // check_intact's own, and this
  check_intact(model, net);
}

TEST_CASE("faults: two threads run backward on graphs that share the parameters", "[faults]") {
  ON_EVERY_DEVICE(on);
  Probe model;
  DataParallel net(model, on.first(3));
  for (int i = 0; i < 20; ++i) {
    model.zero_grad();
    const Tensor a = net(tensor({1.0, 2.0, 3.0})).sum();
    const Tensor b = net(tensor({10.0, 20.0, 30.0})).sum();
    std::thread one([&] { a.backward(); });
    std::thread two([&] { b.backward(); });
    one.join();
    two.join();
    CHECK(model.w.grad().item() == 66);
  }
}

TEST_CASE("faults: two threads run backward on one graph", "[faults]") {
  ON_EVERY_DEVICE(on);
  Probe model;
  DataParallel net(model, on.first(2));
  for (int i = 0; i < 20; ++i) {
    model.zero_grad();
    const Tensor loss = net(tensor({1.0, 2.0})).sum();
    std::atomic<int> refused{0};
    const auto run = [&] {
      try {
        loss.backward({}, true);
      } catch (const AutogradError&) {
        ++refused;
      }
    };
    std::thread one(run);
    std::thread two(run);
    one.join();
    two.join();
    if (refused == 0) CHECK(model.w.grad().item() == 6);
  }
  check_intact(model, net);
}

TEST_CASE("faults: an optimizer steps between forward and backward", "[faults]") {
  ON_EVERY_DEVICE(on);
  Probe model;
  DataParallel net(model, on.first(2));
  optim::SGD sgd(model.parameters(), {.lr = 1});
  const Tensor x = ones({2}).requires_grad_();
  const Tensor y = net(x);
  y.sum().backward({}, true);
  sgd.step();  // w = 3 - 2
  check_error<AutogradError>([&] { y.sum().backward(); }, {"mul", "version"});
  check_intact(model, net, 1);
}

TEST_CASE("faults: parameters frozen midway keep their value and momentum", "[faults]") {
  ON_EVERY_DEVICE(on);
  Mlp model;
  DataParallel net(model, on.first(2));
  optim::SGD sgd(model.parameters(), {.lr = 0.1, .momentum = 0.9});
  sgd.step();  // without gradients
  const auto step = [&] {
    sgd.zero_grad();
    net(ones({4, 6})).sum().backward();
    sgd.step();
  };
  step();
  model.fc2.requires_grad_(false);
  const auto frozen = values(model.fc2.weight);
  const auto free = values(model.fc1.bias);
  step();
  step();
  CHECK(values(model.fc2.weight) == frozen);
  CHECK_FALSE(model.fc2.weight.grad().defined());
  CHECK(values(model.fc1.bias) != free);
}

TEST_CASE("faults: a replica asks for more memory than there is", "[faults]") {
  ON_EVERY_DEVICE(on);
  Probe model;
  DataParallel net(model, on.first(4));
  net(ones({4})).sum().backward();
  model.zero_grad();
  std::vector<std::size_t> bytes;
  for (const Device d : on.first(4)) bytes.push_back(memory_stats(d).allocated);
  std::atomic<int> finished{0};
  model.act = [&](Probe& m, const Tensor& x) {
    if (replica() == 2) return empty({1'000'000'000'000'000}, kUInt8, x.device()).to(kFloat32);
    ++finished;
    return x * m.w;
  };
  const Tensor x = ones({4});
  bool thrown = false;
  try {
    net(x);
  } catch (const ReplicaError& e) {
    thrown = true;
    CHECK(e.replica() == 2);
    CHECK(e.device() == on(2));
    CHECK_THROWS_AS(std::rethrow_if_nested(e), MemoryError);
    for (const char* part : {"requested 1000000000000000", "cache"}) {
      INFO(e.what());
      CHECK(std::string(e.what()).find(part) != std::string::npos);
    }
  }
  CHECK(thrown);
  CHECK(finished == 3);
  for (int i = 1; i < 4; ++i) CHECK(memory_stats(on(i)).allocated == bytes[static_cast<std::size_t>(i)]);
  check_intact(model, net);
}

TEST_CASE("faults: batches that are no multiple of the devices", "[faults]") {
  ON_EVERY_DEVICE(on);
  for (const std::int64_t rows : {0, 3, 5}) {
    Mlp model;
    model.to(kFloat64);
    DataParallel net(model, on.first(4));
    std::atomic<int> ran{0};
    const auto handle =
        model.register_forward_hook([&](nn::Module&, const std::vector<Tensor>&, std::vector<Tensor>&) { ++ran; });
    const Tensor x = integers({rows, 6}, 1);
    const Tensor y = integers({rows, 3}, 2);
    const Tensor loss = net.forward_loss(nn::MSELoss{}, x, y);
    CHECK(ran == (rows == 0 ? 1 : 3));  // 1, 1, 1 and 2, 2, 1 rows
    if (rows == 0) {
      CHECK(std::isnan(loss.item()));
      continue;
    }
    loss.backward();
    const Tensor gradient = model.fc1.weight.grad();
    model.zero_grad();
    const Tensor wanted = mse_loss(model(x), y);
    wanted.backward();
    CHECK(loss.item() == Approx(wanted.item()).epsilon(1e-12));
    CHECK(allclose(gradient, model.fc1.weight.grad(), 1e-12, 1e-12));
  }
}

TEST_CASE("faults: devices that do not exist", "[faults]") {
  ON_EVERY_DEVICE(on);
  Probe model;
  const Device last = on(device_count(on(0).type) - 1);
  const Device absent = on(device_count(on(0).type));
  const std::vector<std::string> message{str(absent), str(last)};
  check_error<DeviceError>([&] { DataParallel net(model, {on(0), absent}); }, message);
  check_error<DeviceError>([&] { DataParallel net(model, {on(0), on(-1)}); }, {str(last)});
  check_error<DeviceError>([&] { DataParallel net(model, on.first(2), {.output_device = absent}); }, message);
  check_error<DeviceError>([&] { parallel::data_parallel(model, {on(0), absent}, {}, ones({4})); }, message);
  check_error<DeviceError>([&] { parallel::scatter(ones({4}), {on(0), absent}); }, message);
  check_error<DeviceError>([&] { parallel::gather(std::vector{ones({4})}, absent); }, message);
  check_error<DeviceError>([&] { parallel::broadcast(ones({4}), {on(0), absent}); }, message);
  DataParallel net(model, on.first(2));
  check_intact(model, net);
}

TEST_CASE("faults: a module that is moved away, and back", "[faults]") {
  ON_EVERY_DEVICE(on);
  Probe model;
  DataParallel net(model, on.first(2));
  check_intact(model, net);
  model.to(on(3));
  check_error<DeviceError>([&] { net(ones({2})); }, {"'w'", str(on(3)), str(on(0)), "module.to("});
  model.to(on(0));
  check_intact(model, net);
}

namespace {
struct Stack : nn::Module {
  std::vector<nn::Linear> layers;
  nn::Buffer offset{zeros({1})};
  Tensor forward(Tensor x) {
    for (nn::Linear& l : layers) x = l(x);
    return x + offset.sum();
  }
  TANDEM_MODULE(Stack, layers, offset)
};
}  // namespace

TEST_CASE("faults: a module that changes between forward and backward", "[faults]") {
  ON_EVERY_DEVICE(on);
  Stack model;
  model.layers.emplace_back(2, 2);
  DataParallel net(model, on.first(2));
  const Tensor x = integers({4, 2}, 1, kFloat32);
  const Tensor y = net(x);
  model.layers.emplace_back(2, 2);
  model.layers[1].weight.requires_grad_(false);
  model.offset = nn::Buffer(full({3}, 0.5));
  y.sum().backward();  // the old graph
  const Tensor gradient = model.layers[0].weight.grad();
  CHECK(allclose(gradient, stack({x.sum({0}), x.sum({0})})));
  CHECK_FALSE(model.layers[1].bias.grad().defined());

  model.zero_grad();
  const Tensor longer = net(x);
  CHECK(allclose(longer, model(x)));
  longer.sum().backward();
  CHECK_FALSE(model.layers[1].weight.grad().defined());
  CHECK(values(model.layers[1].bias.grad()) == std::vector<double>{4, 4});
}

TEST_CASE("faults: a run that is resumed on another number of devices does the same arithmetic", "[faults]") {
  ON_EVERY_DEVICE(on);
  const auto train = [](Mlp& model, optim::Optimizer& optimizer, DataParallel<Mlp>& net, int from, int to) {
    for (int i = from; i < to; ++i) {
      optimizer.zero_grad();
      net.forward_loss(nn::MSELoss{}, integers({7, 6}, i), integers({7, 3}, i + 1)).backward();
      optimizer.step();
    }
    return values(model.fc1.weight);
  };
  Mlp model;
  model.to(kFloat64);
  Mlp resumed;
  resumed.to(kFloat64);
  DataParallel two(model, on.first(2));
  optim::Adam adam(model.parameters(), {.lr = 0.01});
  train(model, adam, two, 0, 3);
  DataParallel four(resumed, on.first(4));
  optim::Adam next(resumed.parameters());
  resumed.load_state_dict(model.state_dict());
  next.load_state(adam.state());
  const auto wanted = train(model, adam, two, 3, 6);
  const auto got = train(resumed, next, four, 3, 6);
  for (std::size_t i = 0; i < wanted.size(); ++i) CHECK(got[i] == Approx(wanted[i]).epsilon(1e-10));
}

TEST_CASE("faults: a program that forks after it has used devices", "[.]") {
  if (!is_child()) return;
  Probe model;
  DataParallel net(model, {cpu(0), cpu(1)});
  check_intact(model, net);
  const pid_t pid = fork();
  REQUIRE(pid >= 0);
  if (pid == 0) {
    alarm(20);
    int code = 1;
    try {
      net(ones({2}));
    } catch (const Error& e) {
      code = std::string(e.what()).find("forked") != std::string::npos ? 0 : 2;
    }
    _exit(code);
  }
  int status = 0;
  REQUIRE(waitpid(pid, &status, 0) == pid);
  CHECK(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 0);
  check_intact(model, net);
}

TEST_CASE("faults: replicas in a forked process are an error, not a wait without end", "[faults]") {
  const Child child = run_child("faults: a program that forks after it has used devices", {});
  CAPTURE(child.output);
  CHECK(child.passed());
}

TEST_CASE("faults: a program that ends with everything alive", "[.]") {
  if (!is_child()) return;
  for (const DeviceType type : device_kinds()) {
    const Devices on(type);
    static std::vector<std::unique_ptr<DataParallel<Mlp>>> nets;
    static std::vector<Tensor> results;
    nets.push_back(std::make_unique<DataParallel<Mlp>>(Mlp(), on.first(4)));
    results.push_back((*nets.back())(ones({8, 6})));
    results.back().sum().backward({}, true);
  }
}

TEST_CASE("faults: a program ends cleanly with wrappers, tensors, graphs and workers alive", "[faults]") {
  const Child child = run_child("faults: a program that ends with everything alive", {});
  CAPTURE(child.output);
  CHECK(child.passed());
}
