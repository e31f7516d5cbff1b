// How replicas run: rows D1 to D12 of the behaviour table.

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <mutex>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "../helpers.h"

using namespace tandem;
using namespace tandem::test;
using parallel::DataParallel;
using parallel::parallel_apply;
using parallel::parallel_invoke;
using parallel::PerReplica;
using parallel::ReplicaError;

namespace {

std::size_t replica() { return parallel::current_replica().index; }

void wait_a_little() { std::this_thread::sleep_for(std::chrono::milliseconds(20)); }

}  // namespace

TEST_CASE("D1: every device has one long-lived thread; a single replica runs in the caller's", "[contract]") {
  ON_EVERY_DEVICE(on);
  Scale model;
  DataParallel net(model, on.first(3));
  const auto thread = [](Scale&, const Tensor&) { return PerReplica<std::thread::id>{{std::this_thread::get_id()}}; };
  const auto first = net.invoke(thread, ones({3})).values;
  REQUIRE(first.size() == 3);
  CHECK(std::set(first.begin(), first.end()).size() == 3);
  CHECK(std::count(first.begin(), first.end(), std::this_thread::get_id()) == 0);
  CHECK(net.invoke(thread, ones({3})).values == first);
  CHECK(net.invoke(thread, ones({1})).values == std::vector{std::this_thread::get_id()});
}

TEST_CASE("D1: all replicas have finished before a failure comes out", "[contract]") {
  ON_EVERY_DEVICE(on);
  Scale model;
  DataParallel net(model, on.first(3));
  std::atomic<int> finished{0};
  const auto first_fails = [&](Scale&, const Tensor& x) {
    if (replica() == 0) throw std::runtime_error("at once");
    wait_a_little();
    ++finished;
    return x;
  };
  check_error<ReplicaError>([&] { net.invoke(first_fails, ones({3})); }, {"replica 0", "at once"});
  CHECK(finished == 2);
}

TEST_CASE("D2: inputs are tuples of arguments: a tensor is one argument, an absent one too", "[contract]") {
  ON_EVERY_DEVICE(on);
  std::vector<int> modules{10, 20};
  std::vector<std::tuple<Tensor, Tensor, std::string>> inputs{
      {tensor({1.0, 2.0}), Tensor(), "a"}, {tensor({3.0, 4.0}).to(on(1)), ones({1}, kFloat32, on(1)), "bc"}};
  const auto f = [](int m, const Tensor& x, const Tensor& maybe, const std::string& s) {
    return x * m + (maybe.defined() ? 0.5 : 0.25) + static_cast<double>(s.size());
  };
  const auto out = parallel_invoke(f, modules, inputs, on.first(2));
  REQUIRE(out.size() == 2);
  CHECK(values(out[0]) == std::vector<double>{11.25, 21.25});
  CHECK(values(out[1]) == std::vector<double>{62.5, 82.5});
  std::vector<std::tuple<>> none(2);
  CHECK(parallel_invoke([](int m) { return m + 1; }, modules, none, on.first(2)) == std::vector<int>{11, 21});
}

TEST_CASE("D2: an input that is no tuple is the only argument, and is not cut", "[contract]") {
  ON_EVERY_DEVICE(on);
  std::vector<Scale> modules(2);
  modules[1].to(on(1));
  std::vector<Tensor> inputs{tensor({1.0, 2.0}), tensor({5.0}).to(on(1))};
  const auto out = parallel::parallel_apply(modules, inputs, on.first(2));
  CHECK(values(out[0]) == std::vector<double>{3, 6});
  CHECK(values(out[1]) == std::vector<double>{15});
}

TEST_CASE("D3: a replica knows its index, count and device, and makes new tensors there", "[contract]") {
  ON_EVERY_DEVICE(on);
  Scale model;
  DataParallel net(model, on.first(4));
  struct Place {
    parallel::ReplicaInfo info;
    Device input, fresh;
  };
  const auto place = [](Scale&, const Tensor& x) {
    return PerReplica<Place>{{{parallel::current_replica(), x.device(), zeros({1}).device()}}};
  };
  const auto places = net.invoke(place, ones({5})).values;
  REQUIRE(places.size() == 3);
  for (std::size_t i = 0; i < 3; ++i) {
    const Device device = on(static_cast<int>(i));
    CHECK(places[i].info.index == i);
    CHECK(places[i].info.count == 3);
    CHECK(places[i].info.device == device);
    CHECK(places[i].input == device);
    CHECK(places[i].fresh == device);
  }
  CHECK(zeros({1}).device() == on(0));
  CHECK_FALSE(parallel::inside_replica());
  CHECK(parallel::current_replica().count == 1);
}

TEST_CASE("D3: new tensors stay on the caller's default device where it is of another kind", "[contract]") {
  ON_EVERY_DEVICE(on);
  if (on.are_cpus()) return;
  Scale model;
  DataParallel net(model, on.first(2));
  const DefaultDeviceGuard host(cpu(1));
  const auto fresh = [](Scale&, const Tensor&) { return PerReplica<Device>{{zeros({1}).device()}}; };
  CHECK(net.invoke(fresh, ones({2})).values == std::vector<Device>{cpu(1), cpu(1)});
}

TEST_CASE("D3: without devices, modules run where their inputs are", "[contract]") {
  ON_EVERY_DEVICE(on);
  std::vector<Scale> modules(2);
  modules[1].to(on(2));
  std::vector<std::tuple<Tensor>> inputs{tensor({1.0}), tensor({2.0}).to(on(2))};
  const auto out = parallel::parallel_apply(modules, inputs);
  CHECK(out[1].device() == on(2));
  CHECK(out[0].item() == 3);
  CHECK(out[1].item() == 6);
  std::vector<std::tuple<Tensor>> empty(2);
  check_error<ValueError>([&] { parallel::parallel_apply(modules, empty); }, {"input 0", "no tensor", "devices"});
}

TEST_CASE("D4: replicas come after what the caller has queued on their devices, and before what it queues then",
          "[contract]") {
  ON_EVERY_DEVICE(on);
  std::vector<Scale> modules(2);
  modules[1].to(on(1));
  std::vector<std::tuple<Tensor>> inputs{{zeros({1 << 14})}, {zeros({1 << 14}, kFloat32, on(1))}};
  const NoGradGuard no_grad;
  for (auto& [x] : inputs) {
    for (int i = 0; i < 20; ++i) x.add_(1);
  }
  const auto out = parallel_apply(modules, inputs, on.first(2));
  for (auto& [x] : inputs) x.zero_();
  for (const Tensor& y : out) CHECK(values(y) == std::vector<double>(1 << 14, 60));
}

TEST_CASE("D5: the caller's context reaches the replicas, and theirs ends with them", "[contract]") {
  ON_EVERY_DEVICE(on);
  Scale model;
  DataParallel net(model, on.first(2));
  using Modes = std::array<bool, 2>;
  const auto modes = [](Scale&, const Tensor&) {
    Context& c = context();
    const Modes seen{c.grad_enabled, c.anomaly};
    c.grad_enabled = false;
    c.anomaly = true;
    return PerReplica<Modes>{{seen}};
  };
  const Tensor x = ones({2});
  CHECK(net.invoke(modes, x).values == std::vector<Modes>(2, {true, false}));
  {
    const NoGradGuard no_grad;
    const AnomalyGuard anomaly;
    CHECK(net.invoke(modes, x).values == std::vector<Modes>(2, {false, true}));
  }
  CHECK(net.invoke(modes, x).values == std::vector<Modes>(2, {true, false}));
  CHECK(context().grad_enabled);
  CHECK_FALSE(context().anomaly);
}

TEST_CASE("D5: replicas share the caller's threads", "[contract]") {
  ON_EVERY_DEVICE(on);
  Scale model;
  const auto threads = [](Scale&, const Tensor&) { return parallel::First<int>{num_threads()}; };
  Context c = context();
  c.threads = 8;
  const ContextGuard guard(c);
  CHECK(DataParallel(model, on.first(1)).invoke(threads, ones({4})).value == 8);
  CHECK(DataParallel(model, on.first(2)).invoke(threads, ones({4})).value == 4);
  CHECK(DataParallel(model, on.first(3)).invoke(threads, ones({4})).value == 4);
  CHECK(DataParallel(model, on.first(3)).invoke(threads, ones({3})).value == 2);
}

TEST_CASE("D6: the failure of the lowest index comes out, though another came first, and tells of it", "[contract]") {
  ON_EVERY_DEVICE(on);
  Scale model;
  DataParallel net(model, on.first(4));
  const auto fails = [](Scale&, const Tensor& x) {
    if (replica() == 1) {
      wait_a_little();
      throw std::runtime_error("late");
    }
    if (replica() == 3) throw std::out_of_range("early");
    return x;
  };
  try {
    net.invoke(fails, ones({4}));
    FAIL("no error");
  } catch (const ReplicaError& e) {
    CHECK(e.replica() == 1);
    CHECK(e.device() == on(1));
    const std::string text = e.what();
    CHECK(text.find("late") < text.find("replica 3"));
    CHECK(text.find("replica 3 on " + str(on(3)) + " failed too") != std::string::npos);
    CHECK(text.find("early") != std::string::npos);
    CHECK_THROWS_AS(std::rethrow_if_nested(e), std::runtime_error);
  }
}

namespace {

/// Cannot be made from a text.
struct Coded : std::exception {
  explicit Coded(int c) : code(c) {}
  const char* what() const noexcept override { return "coded"; }
  int code;
};

struct FailsDeep : nn::Module {
  nn::Linear fc{2, 2};
  Scale scale;
  Tensor forward(const Tensor& x) {
    if (replica() == 0) return scale(fc(x));
    try {
      throw Coded(42);
    } catch (...) {
      std::throw_with_nested(std::logic_error("outer"));
    }
  }
  TANDEM_MODULE(FailsDeep, fc, scale)
};

}  // namespace

TEST_CASE("D7: the text says replica, device, module and inputs; the exception and its causes are nested",
          "[contract]") {
  ON_EVERY_DEVICE(on);
  FailsDeep model;
  DataParallel net(model, on.first(2));
  const std::string given = ", in FailsDeep, args[0] " + describe(ones({1, 2}, kFloat32, on(1)));
  check_error<ReplicaError>([&] { net(ones({3, 2})); }, {"replica 1 of 2 on " + str(on(1)) + given + ": outer"});
  try {
    try {
      net(ones({2, 2}));
    } catch (const ReplicaError& e) {
      std::rethrow_if_nested(e);
    }
    FAIL("no error");
  } catch (const std::logic_error& e) {
    try {
      std::rethrow_if_nested(e);
      FAIL("no cause");
    } catch (const Coded& cause) {
      CHECK(cause.code == 42);
    }
  }
}

TEST_CASE("D8: what is no std::exception comes out as well", "[contract]") {
  ON_EVERY_DEVICE(on);
  Scale model;
  for (const int k : {1, 2}) {
    DataParallel net(model, on.first(k));
    const auto throws_int = [](Scale&, const Tensor&) -> Tensor { throw 42; };
    check_error<ReplicaError>([&] { net.invoke(throws_int, ones({2})); },
                              {"replica 0", "an exception that is no std::exception"});
    try {
      net.invoke(throws_int, ones({2}));
      FAIL("no error");
    } catch (const ReplicaError& e) {
      CHECK_THROWS_AS(std::rethrow_if_nested(e), int);
    }
    CHECK(values(net(tensor({1.0, 2.0}))) == std::vector<double>{3, 6});
  }
}

TEST_CASE("D9: modules, inputs and devices must be equally many, and at least one", "[contract]") {
  ON_EVERY_DEVICE(on);
  std::vector<Scale> modules(2);
  std::vector<std::tuple<Tensor>> one{{ones({1})}};
  std::vector<std::tuple<Tensor>> two{{ones({1})}, {ones({1})}};
  check_error<ValueError>([&] { parallel_apply(modules, one, on.first(2)); }, {"2 modules, 1 inputs and 2 devices"});
  check_error<ValueError>([&] { parallel_apply(modules, two, on.first(3)); }, {"2 modules, 2 inputs and 3 devices"});
  std::vector<Scale> no_modules;
  std::vector<std::tuple<Tensor>> no_inputs;
  check_error<ValueError>([&] { parallel_apply(no_modules, no_inputs, {}); }, {"at least one", "0 modules"});
}

TEST_CASE("D10: forward hooks run once per chunk, in their order, and see the replica as their module", "[contract]") {
  ON_EVERY_DEVICE(on);
  Scale model;
  std::mutex mutex;
  std::array<std::string, 4> order;
  std::set<const nn::Module*> seen;
  const auto note = [&](const nn::Module& m, char what) {
    const std::scoped_lock lock(mutex);
    order.at(replica()) += what;
    seen.insert(&m);
    CHECK(m.parameters()[0].device() == parallel::current_replica().device);
  };
  model.register_forward_hook([&](nn::Module& m, const std::vector<Tensor>&, std::vector<Tensor>& out) {
    note(m, 'b');
    out[0] = out[0] * static_cast<double>(replica() + 1);
  });
  model.register_forward_hook([&](nn::Module& m, const auto&, std::vector<Tensor>&) { note(m, 'c'); });
  model.register_forward_pre_hook([&](nn::Module& m, const std::vector<Tensor>&) { note(m, 'a'); });
  DataParallel net(model, on.first(4));
  CHECK(values(net(tensor({1.0, 1.0, 1.0, 1.0, 1.0})).detach()) == std::vector<double>{3, 3, 6, 6, 9});
  CHECK(order == std::array<std::string, 4>{"abc", "abc", "abc", ""});
  CHECK(seen.size() == 3);
  CHECK_FALSE(seen.contains(&model));
}

TEST_CASE("D10: backward hooks run once per chunk on its gradient; those of the module's parameters on the sum",
          "[contract]") {
  ON_EVERY_DEVICE(on);
  Scale model;
  std::mutex mutex;
  std::vector<double> chunks(3), sums;
  const auto hooked = [&](Scale& m, const Tensor& x) {
    m.w.register_hook([&, i = replica(), device = x.device()](const Tensor& g) {
      const std::scoped_lock lock(mutex);
      CHECK(g.device() == device);
      chunks.at(i) += g.item();
      return g * 2;
    });
    return m(x);
  };
  model.w.register_hook([&](const Tensor& g) {
    sums.push_back(g.item());
    return g;
  });
  DataParallel net(model, on.first(4));
  net.invoke(hooked, tensor({1.0, 2.0, 3.0, 4.0, 5.0})).sum().backward();
  CHECK(chunks == std::vector<double>{3, 7, 5});
  CHECK(sums == std::vector<double>{30});
  CHECK(model.w.grad().item() == 30);
}

TEST_CASE("D11: a replica draws from its device's own generator", "[contract]") {
  ON_EVERY_DEVICE(on);
  Scale model;
  DataParallel net(model, on.first(3));
  const auto draw = [](Scale&, const Tensor& x) { return rand({4}, kFloat64, x.device()); };
  manual_seed(11);
  const Tensor out = net.invoke(draw, ones({3}));
  manual_seed(11);
  std::vector<Tensor> want;
  for (const Device d : on.first(3)) want.push_back(rand({4}, kFloat64, d).to(on(0)));
  CHECK(equal(out, cat(want, 0)));
  CHECK_FALSE(equal(want[0], want[1]));
  CHECK_FALSE(equal(want[1], want[2]));
}

TEST_CASE("D12: BatchNorm in training uses the statistics of each chunk, and keeps those of the first", "[contract]") {
  ON_EVERY_DEVICE(on);
  nn::BatchNorm1d model(2);
  nn::BatchNorm1d first = nn::deepcopy(model);
  nn::BatchNorm1d second = nn::deepcopy(model);
  DataParallel net(model, on.first(2));
  const Tensor x = integers({5, 2}, 1, kFloat32);
  const Tensor want = cat({first(x.narrow(0, 0, 3)), second(x.narrow(0, 3, 2))}, 0).detach();
  CHECK(allclose(net(x).detach(), want));
  CHECK(allclose(model.running_mean, first.running_mean));
  CHECK(allclose(model.running_var, first.running_var));
  CHECK_FALSE(allclose(model.running_mean, second.running_mean));
  CHECK(model.num_batches_tracked.item<std::int64_t>() == 1);
  net.eval();
  first.eval();
  CHECK(allclose(net(x).detach(), first(x).detach()));
}
