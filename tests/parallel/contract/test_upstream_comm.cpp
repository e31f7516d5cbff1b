// The cases of PyTorch's tests of its C++ frontend, and of the functions between devices, as far as they apply.

#include <stdexcept>
#include <tuple>

#include "../helpers.h"

using namespace tandem;
using namespace tandem::test;
using parallel::data_parallel;
using parallel::DataParallel;

TEST_CASE("upstream-cpp-DifferentiableScatter: ones(10) from the host in two halves", "[contract]") {
  ON_EVERY_DEVICE(on);
  Tensor x = ones({10}, kFloat32, cpu()).requires_grad_();
  const auto parts = parallel::scatter(x, on.first(2));
  REQUIRE(parts.size() == 2);
  CHECK(values(parts[1].detach()) == std::vector<double>(5, 1));
  (parts[0].sum().to(on(1)) + parts[1].sum()).backward();
  CHECK(x.grad().device() == cpu());
  CHECK(values(x.grad()) == std::vector<double>(10, 1));
}

TEST_CASE("upstream-cpp-DifferentiableGather: two halves on the second device", "[contract]") {
  ON_EVERY_DEVICE(on);
  Tensor a = ones({5}).requires_grad_();
  Tensor b = ones({5}, kFloat32, on(1)).requires_grad_();
  const Tensor out = parallel::gather(std::vector{a, b}, on(1));
  CHECK(out.device() == on(1));
  CHECK(values(out.detach()) == std::vector<double>(10, 1));
  out.sum().backward();
  CHECK(values(a.grad()) == std::vector<double>(5, 1));
  CHECK(values(b.grad()) == std::vector<double>(5, 1));
  CHECK(b.grad().device() == on(1));
}

TEST_CASE("upstream-cpp-Replicate: equal values; only the first replica shares the module's memory", "[contract]") {
  ON_EVERY_DEVICE(on);
  nn::Linear model(3, 4);
  const auto replicas = parallel::replicate(model, on.first(2));
  CHECK(replicas[0].weight.data_ptr() == model.weight.data_ptr());
  CHECK(replicas[1].weight.data_ptr() != model.weight.data_ptr());
  CHECK(replicas[1].weight.device() == on(1));
  CHECK(values(replicas[1].weight.detach()) == values(model.weight.detach()));
}

TEST_CASE("upstream-cpp-DataParallelUsesAllAvailableCUDADevices: replica i runs on device i", "[contract]") {
  ON_EVERY_DEVICE(on);
  Scale model;
  DataParallel net(model, on.first(4));
  const auto index = [](Scale&, const Tensor& x) { return full({1}, x.device().index, kFloat64, x.device()); };
  CHECK(values(net.invoke(index, zeros({10}))) == std::vector<double>{0, 1, 2, 3});
}

TEST_CASE("upstream-cpp-DataParallelPlacesTheOutputOnTheRequestedDevice: for one device too", "[contract]") {
  ON_EVERY_DEVICE(on);
  Scale model;
  for (const int k : {1, 2}) {
    const Tensor out = data_parallel(model, on.first(k), {.output_device = on(1)}, tensor({1.0, 2.0}));
    CHECK(out.device() == on(1));
    CHECK(values(out.detach()) == std::vector<double>{3, 6});
  }
}

namespace {
struct Net : nn::Module {
  nn::Conv2d conv{2, 2, 2};
  nn::Linear fc{8, 2};
  Tensor forward(const Tensor& x) { return log_softmax(fc(relu(conv(x)).flatten(1)), 1); }
  TANDEM_MODULE(Net, conv, fc)
};
}  // namespace

TEST_CASE("upstream-cpp-DataParallelNumericalEquivalence: three steps of SGD", "[contract]") {
  ON_EVERY_DEVICE(on);
  Net one;
  one.to(kFloat64);
  Net many = nn::deepcopy(one);
  DataParallel net(many, on.first(2));
  optim::SGD sgd_one(one.parameters(), {.lr = 0.1});
  optim::SGD sgd_many(many.parameters(), {.lr = 0.1});
  const std::vector<double> before = values(one.fc.weight.detach());
  for (int i = 0; i < 3; ++i) {
    const Tensor x = integers({16, 2, 3, 3}, i) / 4;
    const Tensor target = randint(0, 2, {16});
    sgd_one.zero_grad();
    sgd_many.zero_grad();
    nll_loss(one(x), target).backward();
    nll_loss(net(x), target).backward();
    sgd_one.step();
    sgd_many.step();
  }
  CHECK(values(one.fc.weight.detach()) != before);
  for (std::size_t i = 0; i < one.parameters().size(); ++i) {
    CHECK(allclose(many.parameters()[i].detach(), one.parameters()[i].detach(), 1e-10, 1e-12));
  }
}

TEST_CASE("upstream-cpp-ParallelApply: on the host and on two devices", "[contract]") {
  ON_EVERY_DEVICE(on);
  const std::vector<Device> devices{cpu(2), on(0), on(1)};
  std::vector<Scale> modules(3);
  std::vector<std::tuple<Tensor>> inputs;
  for (std::size_t i = 0; i < 3; ++i) {
    modules[i].to(devices[i]);
    inputs.emplace_back(tensor({1.0, 2.0}).to(devices[i]));
  }
  const auto out = parallel::parallel_apply(modules, inputs, devices);
  for (std::size_t i = 0; i < 3; ++i) {
    CHECK(out[i].device() == devices[i]);
    CHECK(values(out[i].detach()) == std::vector<double>{3, 6});
  }
}

namespace {
struct Fives : nn::Module {
  Tensor forward(const Tensor&) { return ones({5}, kInt32); }
  TANDEM_MODULE(Fives)
};
}  // namespace

TEST_CASE("upstream-cpp-ParallelApplyWithDifferentOutputDevice: what forward makes is on its device", "[contract]") {
  ON_EVERY_DEVICE(on);
  const std::vector<Device> devices{on(1), on(0), on(2)};
  std::vector<Fives> modules(3);
  std::vector<std::tuple<Tensor>> inputs(3, {ones({2, 2})});
  const auto out = parallel::parallel_apply(modules, inputs, devices);
  for (std::size_t i = 0; i < 3; ++i) {
    CHECK(out[i].device() == devices[i]);
    CHECK(out[i].dtype() == kInt32);
    CHECK(values(out[i]) == std::vector<double>(5, 1));
  }
}

namespace {
struct Throws : nn::Module {
  Tensor forward(const Tensor&) { throw std::runtime_error("Badness!"); }
  TANDEM_MODULE(Throws)
};
}  // namespace

TEST_CASE("upstream-cpp-ParallelApplyRethrowsException: the message comes out", "[contract]") {
  ON_EVERY_DEVICE(on);
  std::vector<Throws> modules(2);
  std::vector<std::tuple<Tensor>> inputs{{ones({1})}, {ones({1}, kFloat32, on(1))}};
  check_error<parallel::ReplicaError>([&] { parallel::parallel_apply(modules, inputs, on.first(2)); },
                                      {"Badness!", "replica 0"});
}

TEST_CASE("upstream-comm-broadcast: from the host; the copy at home is the tensor itself", "[contract]") {
  ON_EVERY_DEVICE(on);
  for (const Device home : {cpu(), on(0)}) {
    const Tensor x = integers({5, 5}).to(home);
    const auto copies = parallel::broadcast(x, on.first(2));
    CHECK((copies[0].data_ptr() == x.data_ptr()) == (home == on(0)));
    for (const Tensor& c : copies) CHECK(equal(c.to(home), x));
  }
}

TEST_CASE("upstream-comm-broadcast_coalesced: mixed dtypes and empty tensors keep order and values", "[contract]") {
  ON_EVERY_DEVICE(on);
  const std::vector<Tensor> tensors{integers({40}), zeros({0}), integers({3}, 1, kInt64),
                                    integers({2, 2}, 2, kFloat32)};
  const auto copies = parallel::broadcast_coalesced(tensors, on.first(2));
  for (std::size_t j = 0; j < tensors.size(); ++j) {
    CHECK(copies[1][j].device() == on(1));
    CHECK(copies[1][j].dtype() == tensors[j].dtype());
    CHECK(equal(copies[1][j].to(on(0)), tensors[j]));
  }
  CHECK(copies[0][0].data_ptr() == tensors[0].data_ptr());
  Tensor changed = copies[1][0];
  const auto version = copies[1][3].version();
  changed.add_(1);
  CHECK(copies[1][3].version() == version);
}

TEST_CASE("upstream-comm-reduce_add: two devices", "[contract]") {
  ON_EVERY_DEVICE(on);
  const Tensor x = integers({5, 5}, 1);
  const Tensor y = integers({5, 5}, 2);
  const Tensor sum = parallel::reduce_add(std::vector{x, y.to(on(1))}, on(0));
  CHECK(sum.device() == on(0));
  CHECK(equal(sum, x + y));
}

TEST_CASE("upstream-comm-scatter: given sizes, and what is refused", "[contract]") {
  ON_EVERY_DEVICE(on);
  const Tensor x = integers({6, 2});
  const auto parts = parallel::scatter(x, on.first(2), {2, 4});
  CHECK(parts[0].data_ptr() == x.data_ptr());
  CHECK(equal(parts[1].to(on(0)), x.narrow(0, 2, 4)));
  check_error<ValueError>([&] { parallel::scatter(x, on.first(2), {6}); }, {"1 chunks", "2 devices"});
  check_error<ValueError>([&] { parallel::scatter(x, on.first(2), {2, 3}); }, {"5 elements", "(6, 2)"});
  check_error<ValueError>([&] { parallel::scatter(x, {}); }, {"empty"});
  check_error<ShapeError>([&] { parallel::scatter(zeros({}), on.first(2), {1, 1}); }, {"0-dim"});
}

TEST_CASE("upstream-comm-gather: what is refused", "[contract]") {
  ON_EVERY_DEVICE(on);
  check_error<ValueError>([&] { parallel::gather({}, on(0)); }, {"no tensors"});
  check_error<ShapeError>([&] { parallel::gather(std::vector{zeros({2, 3}), zeros({2})}, on(0)); }, {"tensor 1"});
  check_error<ShapeError>(
      [&] {
        parallel::gather(std::vector{zeros({2, 3}), zeros({2, 4})}, on(0));
      },
      {"tensor 1", "(2, 4)", "(2, 3)"});
}
