// What a DataParallel is made of and what a call does: rows A1 to A15 of the behaviour table.

#include <chrono>
#include <cstdint>
#include <exception>
#include <map>
#include <string>
#include <thread>
#include <utility>

#include "../helpers.h"

using namespace tandem;
using namespace tandem::test;
using parallel::data_parallel;
using parallel::DataParallel;
using parallel::PerReplica;
using parallel::Phase;

namespace {

/// Keeps a number that is no tensor, and a buffer that forward changes in place.
struct Counter : nn::Module {
  nn::Parameter w{tensor({3.0})};
  nn::Buffer calls{zeros({1})};
  int own_calls = 0;
  Tensor forward(const Tensor& x) {
    ++own_calls;
    calls.add_(1);
    return x * w;
  }
  Tensor halved(const Tensor& x) const { return x * w / 2; }
  TANDEM_MODULE(Counter, w, calls)
};

/// The devices that did something in a phase.
std::vector<Device> busy(DataParallel<Scale>& net, Phase phase) {
  std::vector<Device> devices;
  for (const parallel::PhaseTotal& t : net.ledger().totals()) {
    if (t.phase == phase) devices.push_back(t.device);
  }
  return devices;
}

}  // namespace

TEST_CASE("A1: check, scatter, replicate, forward, gather, on the devices that have a chunk", "[contract]") {
  ON_EVERY_DEVICE(on);
  Scale model;
  DataParallel net(model, on.first(4), {.output_device = on(3)});
  CHECK(values(net(tensor({1.0, 2.0, 3.0, 4.0, 5.0}))) == std::vector<double>{3, 6, 9, 12, 15});  // chunks 2, 2, 1
  const std::vector<Device> others{on(1), on(2)};
  CHECK(busy(net, Phase::Check) == on.first(1));
  CHECK(busy(net, Phase::Scatter) == others);
  CHECK(busy(net, Phase::Replicate) == others);
  CHECK(busy(net, Phase::Forward) == on.first(3));
  CHECK(busy(net, Phase::Gather) == std::vector<Device>{on(3)});
}

TEST_CASE("A1: a call sees what has been done to the module since the last", "[contract]") {
  ON_EVERY_DEVICE(on);
  Scale model;
  DataParallel net(model, on.first(2));
  const Tensor x = tensor({1.0, 2.0});
  CHECK(values(net(x)) == std::vector<double>{3, 6});
  {
    const NoGradGuard no_grad;
    model.w.fill_(5);
  }
  CHECK(values(net(x)) == std::vector<double>{5, 10});
  model.w = nn::Parameter(tensor({7.0}));
  CHECK(values(net(x)) == std::vector<double>{7, 14});
}

TEST_CASE("A2: without a list, all devices of the module's kind in ascending order", "[contract]") {
  ON_EVERY_DEVICE(on);
  Scale model;
  const DataParallel net(model);
  CHECK(net.device_ids() == on.first(device_count(on(0).type)));
  CHECK(net.output_device() == on(0));
}

TEST_CASE("A2: the first device of the list has the parameters, the gradients and the output", "[contract]") {
  ON_EVERY_DEVICE(on);
  Scale model;
  model.to(on(2));
  DataParallel net(model, {on(2), on(0)});
  const Tensor out = net(tensor({1.0, 2.0, 4.0}));
  CHECK(out.device() == on(2));
  CHECK(values(out) == std::vector<double>{3, 6, 12});
  out.sum().backward();
  CHECK(model.w.device() == on(2));
  CHECK(model.w.grad().device() == on(2));
  CHECK(model.w.grad().item() == 7);
}

TEST_CASE("A3: a module on the host runs on the logical CPU devices, by the same rules", "[contract]") {
  Scale model;
  DataParallel net(model);
  CHECK(net.output_device() == cpu());
  const auto devices = [](Scale& m, const Tensor& x) {
    return std::pair(m(x).sum(), PerReplica<Device>{{parallel::current_replica().device}});
  };
  const auto [sums, where] = net.invoke(devices, tensor({1.0, 2.0}));
  CHECK(values(sums) == std::vector<double>{3, 6});
  CHECK(where.values == std::vector<Device>{cpu(0), cpu(1)});
}

TEST_CASE("A4: the functional form wants devices", "[contract]") {
  ON_EVERY_DEVICE(on);
  Scale model;
  check_error<ValueError>([&] { data_parallel(model, {}, {}, ones({2})); },
                          {"the list of devices is empty", str(cpu(0)), str(on(0))});
}

TEST_CASE("A5: neither form moves the module", "[contract]") {
  ON_EVERY_DEVICE(on);
  Scale model;
  for (const std::vector<Device>& devices : {std::vector{on(1)}, std::vector{on(1), on(0)}}) {
    DataParallel net(model, devices);
    CHECK(model.w.device() == on(0));
    check_error<DeviceError>([&] { net(ones({2})); }, {"'w'", str(on(0)), str(on(1))});
    check_error<DeviceError>([&] { data_parallel(model, devices, {}, ones({2})); }, {"'w'", str(on(0)), str(on(1))});
    CHECK(model.w.device() == on(0));
  }
}

TEST_CASE("A6: one device behaves as many do", "[contract]") {
  ON_EVERY_DEVICE(on);
  for (const int k : {1, 2}) {
    Counter model;
    DataParallel net(model, on.first(k), {.output_device = on(3)});
    const auto total = [](Counter& m, const Tensor& x) { return m(x).sum(); };
    const Tensor out = net.invoke(total, tensor({1.0, 1.0}).to(on(2)));
    CHECK(out.device() == on(3));
    CHECK(values(out) == std::vector<double>(static_cast<std::size_t>(k), 6.0 / k));
    CHECK(model.own_calls == 0);
    CHECK(model.calls.item() == 1);
    const auto parameters = [](Counter& m, const Tensor&) {
      return PerReplica<bool>{{m.parameters().size() == 1 && !m.parameters()[0].is_leaf()}};
    };
    CHECK(net.invoke(parameters, ones({2})).values == std::vector<bool>(static_cast<std::size_t>(k), true));
  }
}

TEST_CASE("A7: a single chunk runs in the calling thread, and is still gathered", "[contract]") {
  ON_EVERY_DEVICE(on);
  Scale model;
  DataParallel net(model, on.first(3), {.output_device = on(2)});
  const auto total = [](Scale& m, const Tensor& x) {
    return std::pair(m(x).sum(), PerReplica<std::thread::id>{{std::this_thread::get_id()}});
  };
  const auto [sum, threads] = net.invoke(total, tensor({4.0}));
  CHECK(sum.device() == on(2));
  CHECK(sum.sizes() == Shape{1});
  CHECK(values(sum) == std::vector<double>{12});
  CHECK(threads.values == std::vector<std::thread::id>{std::this_thread::get_id()});
}

TEST_CASE("A8: the ledger tells how long a device waited for the slowest", "[contract]") {
  ON_EVERY_DEVICE(on);
  Scale model;
  DataParallel net(model, on.first(2));
  const auto slow = [](Scale& m, const Tensor& x) {
    if (parallel::current_replica().index == 1) std::this_thread::sleep_for(std::chrono::milliseconds(40));
    return m(x);
  };
  net.invoke(slow, ones({2}));  // what the first call makes for good takes time on both
  net.ledger().clear();
  for (int i = 0; i < 2; ++i) net.invoke(slow, ones({2}));
  std::map<Device, double> waited;
  for (const auto& t : net.ledger().totals()) waited[t.device] += t.wait_seconds;
  CHECK(waited[on(0)] > 0.035);
  CHECK(waited[on(1)] < waited[on(0)]);
}

TEST_CASE("A9: a parameter or buffer elsewhere is named, parameters first", "[contract]") {
  ON_EVERY_DEVICE(on);
  Counter model;
  DataParallel net(model, on.first(2));
  model.calls = nn::Buffer(zeros({1}, kFloat32, on(1)));
  check_error<DeviceError>([&] { net(ones({2})); },
                           {"buffer 'calls'", "is on " + str(on(1)), "the first device, " + str(on(0))});
  model.w = nn::Parameter(ones({1}, kFloat32, on(2)));
  check_error<DeviceError>([&] { net(ones({2})); },
                           {"parameter 'w'", "is on " + str(on(2)), "the first device, " + str(on(0))});
}

TEST_CASE("A10: to() on the wrapper moves the module, not the list of devices", "[contract]") {
  ON_EVERY_DEVICE(on);
  Scale model;
  model.to(on(1));
  DataParallel net(model, on.first(2));
  net.to(on(0));
  CHECK(values(net(tensor({1.0, 2.0}))) == std::vector<double>{3, 6});
  net.to(on(1));
  CHECK(model.w.device() == on(1));
  CHECK(net.device_ids() == on.first(2));
  check_error<DeviceError>([&] { net(ones({2})); }, {"'w'", str(on(1)), "call module.to(" + str(on(0)) + ")"});
  net.to(on(0));
  CHECK(values(net(tensor({1.0, 2.0}))) == std::vector<double>{3, 6});
}

TEST_CASE("A11: a device listed twice is refused by both forms", "[contract]") {
  ON_EVERY_DEVICE(on);
  Scale model;
  const std::vector<Device> twice{on(0), on(1), on(1)};
  check_error<ValueError>([&] { DataParallel(model, twice); }, {str(on(1)) + " is listed twice", str(twice)});
  check_error<ValueError>([&] { data_parallel(model, twice, {}, ones({3})); }, {str(on(1)) + " is listed twice"});
}

TEST_CASE("A12: the state is the module's own, without a prefix", "[contract]") {
  ON_EVERY_DEVICE(on);
  Counter model;
  DataParallel net(model, on.first(2));
  const nn::StateDict state = net.state_dict();
  REQUIRE(state.size() == 2);
  CHECK(state[0].first == "w");
  CHECK(state[1].first == "calls");
  net.load_state_dict({{"w", tensor({5.0})}, {"calls", tensor({9.0})}});
  CHECK(model.w.item() == 5);
  CHECK(values(net(tensor({1.0, 2.0}))) == std::vector<double>{5, 10});
  CHECK(model.calls.item() == 10);
}

TEST_CASE("A12: train, eval and zero_grad act on the module", "[contract]") {
  ON_EVERY_DEVICE(on);
  Scale model;
  DataParallel net(model, on.first(2));
  const auto training = [](Scale& m, const Tensor&) { return PerReplica<bool>{{m.training}}; };
  net.eval();
  CHECK_FALSE(model.training);
  CHECK(net.invoke(training, ones({2})).values == std::vector<bool>{false, false});
  net.train();
  CHECK(net.invoke(training, ones({2})).values == std::vector<bool>{true, true});
  net(ones({2})).sum().backward();
  CHECK(model.w.grad().item() == 2);
  net.zero_grad();
  CHECK_FALSE(model.w.grad().defined());
}

TEST_CASE("A13: other functions of the module run on all devices when asked for", "[contract]") {
  ON_EVERY_DEVICE(on);
  Counter model;
  DataParallel net(model, on.first(2));
  const Tensor out = net.invoke(&Counter::halved, tensor({2.0, 4.0, 8.0}));
  CHECK(values(out) == std::vector<double>{3, 6, 12});
  out.sum().backward();
  CHECK(model.w.grad().item() == 7);
  CHECK(values(net.module().halved(tensor({2.0}))) == std::vector<double>{3});
}

TEST_CASE("A14: the ledger tells phases apart, with the bytes that came to a device", "[contract]") {
  ON_EVERY_DEVICE(on);
  Scale model;
  model.w = nn::Parameter(ones({16}));
  constexpr int kRow = 16 * 4;
  DataParallel net(model, on.first(2));
  const auto bytes = [&](Phase phase, Device device) -> std::int64_t {
    for (const parallel::PhaseTotal& t : net.ledger().totals()) {
      if (t.phase == phase && t.device == device) return t.bytes;
    }
    return -1;
  };
  const Tensor out = net(ones({3, 16}));
  CHECK(bytes(Phase::Scatter, on(1)) == kRow);
  CHECK(bytes(Phase::Replicate, on(1)) == kRow);
  CHECK(bytes(Phase::Forward, on(0)) == 0);
  CHECK(bytes(Phase::Forward, on(1)) == 0);
  CHECK(bytes(Phase::Gather, on(0)) == kRow);
  CHECK(bytes(Phase::Reduce, on(0)) == -1);
  out.sum().backward();
  CHECK(bytes(Phase::Scatter, on(1)) == 2 * kRow);  // the second is the gradient of the output
  CHECK(bytes(Phase::Reduce, on(0)) == kRow);
}

TEST_CASE("A15: a DataParallel inside a replica is refused, and the outer one goes on", "[contract]") {
  ON_EVERY_DEVICE(on);
  Scale model, inner;
  for (const int k : {1, 2}) {
    DataParallel net(model, on.first(k));
    DataParallel nested(inner, on.first(2));
    const auto call = [&](Scale&, const Tensor& x) { return nested(x); };
    const auto functional = [&](Scale&, const Tensor& x) { return data_parallel(inner, on.first(2), {}, x); };
    check_error<parallel::ReplicaError>([&] { net.invoke(call, ones({4})); },
                                        {"DataParallel: called inside replica 0", "use the inner module itself"});
    check_error<parallel::ReplicaError>([&] { net.invoke(functional, ones({4})); },
                                        {"data_parallel: called inside replica 0"});
    try {
      net.invoke(call, ones({4}));
      FAIL("no error");
    } catch (const parallel::ReplicaError& e) {
      CHECK_THROWS_AS(std::rethrow_if_nested(e), AutogradError);
    }
    CHECK(values(net(tensor({1.0, 2.0}))) == std::vector<double>{3, 6});
  }
}
