// What a replica is, and how tensors get to it: rows C1 to C16 of the behaviour table.

#include <atomic>
#include <map>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "../../nn/files.h"
#include "../helpers.h"

using namespace tandem;
using namespace tandem::test;
using parallel::data_parallel;
using parallel::DataParallel;
using parallel::PerReplica;
using parallel::replicate;

namespace {

std::size_t replica() { return parallel::current_replica().index; }

struct State : nn::Module {
  nn::Parameter w{tensor({2.0, 3.0}, kFloat64)};
  nn::Buffer steps{tensor({5.0}).to(kInt64)}, shift{tensor({1.0, 4.0}, kFloat64)};
  Tensor forward(const Tensor& x) {
    steps.add_(static_cast<std::int64_t>(1 + 10 * replica()));
    return x * w + shift;
  }
  TANDEM_MODULE(State, w, steps, shift)
};

}  // namespace

TEST_CASE("C1: parameters of replicas are outputs of one broadcast, no leaves, without gradients", "[contract]") {
  ON_EVERY_DEVICE(on);
  Mlp model;
  const auto replicas = replicate(model, on.first(3));
  const Ref<Node> node = replicas[0].fc1.weight.grad_fn();
  REQUIRE(node);
  CHECK(std::string(node->name()) == "broadcast");
  CHECK(node->outputs().size() == 3 * 4);
  for (const Mlp& r : replicas) {
    for (const Tensor& p : r.parameters()) {
      CHECK_FALSE(p.is_leaf());
      CHECK(p.grad_fn() == node);
      CHECK_FALSE(p.grad().defined());
    }
  }
  CHECK(model.fc1.weight.is_leaf());
}

TEST_CASE("C2: replica 0 shares the module's memory, so what it changes in place lasts", "[contract]") {
  ON_EVERY_DEVICE(on);
  State model;
  DataParallel net(model, on.first(3));
  const Tensor x = integers({3, 2}, 1);
  net(x);
  CHECK(model.steps.item<std::int64_t>() == 6);
  net(x);
  CHECK(model.steps.item<std::int64_t>() == 7);
  const auto writes = [](State& m, const Tensor& t) {
    const NoGradGuard no_grad;
    m.w.mul_(replica() == 0 ? 2 : 100);
    return t;
  };
  net.invoke(writes, x);
  CHECK(values(model.w.detach()) == std::vector<double>{4, 6});
  CHECK(equal(net(x).detach(), x * model.w.detach() + model.shift));
}

TEST_CASE("C3: buffers of any dtype reach every replica; those that require it get a gradient", "[contract]") {
  ON_EVERY_DEVICE(on);
  State model;
  model.shift.requires_grad_();
  const auto replicas = replicate(model, on.first(2));
  CHECK(replicas[1].steps.device() == on(1));
  CHECK(replicas[1].steps.dtype() == kInt64);
  CHECK(replicas[1].steps.item<std::int64_t>() == 5);
  CHECK(replicas[1].steps.is_leaf());
  CHECK_FALSE(replicas[1].shift.is_leaf());
  (replicas[0].shift * 2 + (replicas[1].shift * 3).to(on(0))).sum().backward();
  CHECK(values(model.shift.grad()) == std::vector<double>{5, 5});
  const NoGradGuard no_grad;
  CHECK_FALSE(replicate(model, on.first(2))[1].shift.requires_grad());
}

TEST_CASE("C4: without gradients nothing is recorded, and the module's own flags stay", "[contract]") {
  ON_EVERY_DEVICE(on);
  Mlp model;
  DataParallel net(model, on.first(2));
  const std::int64_t nodes = live_nodes();
  {
    const NoGradGuard no_grad;
    for (const Tensor& out : {net(ones({2, 6})), data_parallel(model, on.first(2), {}, ones({2, 6}))}) {
      CHECK_FALSE(out.requires_grad());
    }
    CHECK_FALSE(replicate(model, on.first(2))[1].fc1.weight.requires_grad());
    CHECK(live_nodes() == nodes);
  }
  for (const Tensor& p : model.parameters()) CHECK(p.requires_grad());
  net(ones({2, 6})).sum().backward();
  CHECK(values(model.fc2.bias.grad()) == std::vector<double>{2, 2, 2});
}

TEST_CASE("C5: replicas of frozen parameters are off the tape", "[contract]") {
  ON_EVERY_DEVICE(on);
  Mlp model;
  model.fc1.requires_grad_(false);
  const auto replicas = replicate(model, on.first(2));
  for (const Mlp& r : replicas) {
    CHECK_FALSE(r.fc1.weight.requires_grad());
    CHECK_FALSE(r.fc1.weight.grad_fn());
    CHECK(r.fc2.weight.grad_fn()->outputs().size() == 2 * 2);
  }
  DataParallel net(model, on.first(2));
  const auto frozen_part = [](Mlp& m, const Tensor& x) { return m.fc1(x); };
  CHECK_FALSE(net.invoke(frozen_part, ones({2, 6})).requires_grad());
  net(ones({2, 6})).sum().backward();
  CHECK_FALSE(model.fc1.weight.grad().defined());
  CHECK(values(model.fc2.bias.grad()) == std::vector<double>{2, 2, 2});
}

namespace {
struct Tied : nn::Module {
  nn::Linear first{2, 2}, second{2, 2};
  Tied() { second.weight = first.weight; }
  Tensor forward(const Tensor& x) { return first(second(first(x))); }
  TANDEM_MODULE(Tied, first, second)
};
}  // namespace

TEST_CASE("C6: a tied parameter is copied once per device and gets the sum of all its uses", "[contract]") {
  ON_EVERY_DEVICE(on);
  Tied model;
  model.to(kFloat64);
  set_integers(model);
  for (const Tied& r : replicate(model, on.first(2))) {
    CHECK(r.parameters().size() == 3);
    CHECK(r.first.weight.is_same(r.second.weight));
  }
  const Tensor x = integers({4, 2}, 2);
  model(x).sum().backward();
  std::vector<Tensor> want;
  for (const Tensor& p : model.parameters()) want.push_back(p.grad().clone());
  model.zero_grad();
  DataParallel(model, on.first(2))(x).sum().backward();
  for (std::size_t i = 0; i < want.size(); ++i) CHECK(equal(model.parameters()[i].grad(), want[i]));
}

namespace {
struct Absent : nn::Module {
  nn::Linear fc{2, 2, {.bias = false}};
  std::optional<nn::Linear> head;
  nn::Buffer mask;
  nn::Parameter late;
  Tensor forward(const Tensor& x) {
    if (head || mask.defined() || fc.bias.defined()) throw std::logic_error("something came into being");
    return late.defined() ? fc(x) * late : fc(x);
  }
  TANDEM_MODULE(Absent, fc, head, mask, late)
};
}  // namespace

TEST_CASE("C7: absent parameters, buffers and submodules stay absent", "[contract]") {
  ON_EVERY_DEVICE(on);
  Absent model;
  model.to(kFloat64);
  set_integers(model);
  const Tensor x = integers({3, 2});
  DataParallel net(model, on.first(3));
  CHECK(equal(net(x).detach(), model(x).detach()));
  const auto replicas = replicate(model, on.first(2));
  CHECK_FALSE(replicas[1].fc.bias.defined());
  CHECK_FALSE(replicas[1].head.has_value());
  CHECK(replicas[1].state_dict().size() == 1);
}

TEST_CASE("C8: inside forward a replica lists its own tensors under the module's names", "[contract]") {
  ON_EVERY_DEVICE(on);
  nn::BatchNorm1d model(2);
  DataParallel net(model, on.first(2));
  struct Listed {
    std::vector<std::string> names;
    bool all_here = true;
  };
  const auto list = [](nn::BatchNorm1d& m, const Tensor& x) {
    Listed seen;
    for (const auto& [name, t] : m.named_parameters()) {
      seen.names.push_back(name);
      seen.all_here = seen.all_here && t.device() == x.device() && t.requires_grad();
    }
    for (const auto& [name, t] : m.state_dict()) {
      seen.names.push_back(name);
      seen.all_here = seen.all_here && t.device() == x.device();
    }
    return PerReplica<Listed>{{seen}};
  };
  const std::vector<Listed> seen = net.invoke(list, ones({2, 2})).values;
  REQUIRE(seen.size() == 2);
  for (const Listed& s : seen) {
    CHECK(s.names == std::vector<std::string>{"weight", "bias", "weight", "bias", "running_mean", "running_var",
                                              "num_batches_tracked"});
    CHECK(s.all_here);
  }
}

namespace {
struct Notes : nn::Module {
  nn::Parameter w{ones({1})};
  int count = 7;
  std::vector<int> log{1};
  Tensor forward(const Tensor& x) {
    log.push_back(++count);
    return x * static_cast<double>(100 * log.size()) + static_cast<double>(log.back());
  }
  TANDEM_MODULE(Notes, w)
};
}  // namespace

TEST_CASE("C9: plain attributes are copies in every replica, the first too, and what is written is lost",
          "[contract]") {
  ON_EVERY_DEVICE(on);
  Notes model;
  for (const int k : {1, 2}) {
    DataParallel net(model, on.first(k));
    for (int call = 0; call < 2; ++call) CHECK(values(net(ones({2}))) == std::vector<double>{208, 208});
    CHECK(model.count == 7);
    CHECK(model.log == std::vector<int>{1});
  }
}

TEST_CASE("C9: a hook that forward registers is its replica's alone", "[contract]") {
  ON_EVERY_DEVICE(on);
  Mlp model;
  DataParallel net(model, on.first(3));
  std::atomic<int> runs{0};
  const auto hooked = [&](Mlp& m, const Tensor& x) {
    m.fc2.register_forward_hook([&](nn::Module&, const auto&, std::vector<Tensor>&) { ++runs; });
    return m(x);
  };
  net.invoke(hooked, ones({3, 6}));
  CHECK(runs == 3);
  CHECK_FALSE(model.fc2.has_hooks());
  net(ones({3, 6}));
  CHECK(runs == 3);
}

namespace {
struct Nested : nn::Module {
  std::map<std::string, std::vector<nn::Parameter>> lists{{"a", {tensor({2.0}), tensor({3.0})}}};
  std::vector<Scale> scales = std::vector<Scale>(2);
  Tensor forward(const Tensor& x) { return scales[0](x) * scales[1](x) * lists.at("a")[0] * lists.at("a")[1]; }
  TANDEM_MODULE(Nested, lists, scales)
};
}  // namespace

TEST_CASE("C10: parameters and modules in nested containers are the replica's, and on the tape", "[contract]") {
  ON_EVERY_DEVICE(on);
  Nested model;
  // Copies of a module share their tensors: these two are to differ.
  model.scales[1].w = nn::Parameter(tensor({5.0}));
  const auto replicas = replicate(model, on.first(2));
  std::vector<std::string> names;
  for (const auto& [name, p] : replicas[1].named_parameters()) {
    names.push_back(name);
    CHECK(p.device() == on(1));
    CHECK(p.grad_fn());
  }
  CHECK(names == std::vector<std::string>{"lists.a.0", "lists.a.1", "scales.0.w", "scales.1.w"});
  DataParallel net(model, on.first(2));
  const Tensor out = net(tensor({1.0, 2.0}));
  CHECK(values(out.detach()) == std::vector<double>{90, 360});
  out.sum().backward();
  CHECK(model.lists.at("a")[1].grad().item() == 150);
  CHECK(model.scales[1].w.grad().item() == 90);
}

namespace {
struct Recurrent : nn::Module {
  nn::Linear input{2, 2}, hidden{2, 2};
  Tensor forward(const Tensor& x) {
    Tensor h = zeros({x.size(0), 2}, x.dtype(), x.device());
    for (std::int64_t t = 0; t < x.size(1); ++t) h = input(x.select(1, t)) + hidden(h);
    return h;
  }
  TANDEM_MODULE(Recurrent, input, hidden)
};
}  // namespace

TEST_CASE("C11, upstream-2: a recurrent module has one device's gradients, step after step", "[contract]") {
  ON_EVERY_DEVICE(on);
  Recurrent one;
  one.to(kFloat64);
  set_integers(one);
  Recurrent many = nn::deepcopy(one);
  DataParallel net(many, on.first(3));
  optim::SGD sgd_one(one.parameters(), {.lr = 0.5});
  optim::SGD sgd_many(many.parameters(), {.lr = 0.5});
  for (int step = 0; step < 2; ++step) {
    const Tensor x = integers({5, 3, 2}, step);
    sgd_one.zero_grad();
    sgd_many.zero_grad();
    one(x).sum().backward();
    net(x).sum().backward();
    CHECK(abs(one.hidden.weight.grad()).sum().item() > 0);
    for (std::size_t i = 0; i < 4; ++i) CHECK(equal(many.parameters()[i].grad(), one.parameters()[i].grad()));
    sgd_one.step();
    sgd_many.step();
  }
}

TEST_CASE("C12: a parameter that is defined between two calls takes part from then on", "[contract]") {
  ON_EVERY_DEVICE(on);
  Absent model;
  DataParallel net(model, on.first(2));
  const Tensor x = ones({2, 2});
  const Tensor before = net(x).detach();
  model.late = nn::Parameter(tensor({4.0}));
  const Tensor out = net(x);
  CHECK(equal(out.detach(), before * 4));
  out.sum().backward();
  CHECK(model.late.grad().item() == Approx(before.sum().item()));
}

TEST_CASE("C13: zero_grad of a replica is refused, and leaves the module's gradients", "[contract]") {
  ON_EVERY_DEVICE(on);
  Scale model;
  model(tensor({6.0})).backward(ones({1}));
  for (Scale& r : replicate(model, on.first(2))) {
    check_error<AutogradError>([&] { r.zero_grad(); }, {"zero_grad", "w is not a leaf", "replica"});
  }
  CHECK(model.w.grad().item() == 6);
}

TEST_CASE("C14: a replica's state can be saved, and a deep copy of it is a module of its own", "[contract]") {
  ON_EVERY_DEVICE(on);
  State model;
  const auto replicas = replicate(model, on.first(2));
  const testing::TempDir dir;
  data::save_tensors(dir / "replica", {replicas[1].state_dict(), {}});
  State loaded;
  {
    const NoGradGuard no_grad;
    loaded.w.zero_();
    loaded.steps.zero_();
  }
  loaded.load_state_dict(data::load_tensors(dir / "replica").tensors);
  CHECK(values(loaded.w.detach()) == std::vector<double>{2, 3});
  CHECK(loaded.steps.item<std::int64_t>() == 5);

  State copy = nn::deepcopy(replicas[0]);
  CHECK(copy.w.is_leaf());
  CHECK(copy.w.requires_grad());
  copy.steps.zero_();
  CHECK(model.steps.item<std::int64_t>() == 5);
}

TEST_CASE("C15: tensors of every dtype, size and device are broadcast together, in their order", "[contract]") {
  ON_EVERY_DEVICE(on);
  const std::vector<Tensor> tensors{integers({2, 3}), scalar_tensor(7, kFloat64), integers({4}, 1, kInt64).to(on(2)),
                                    zeros({0, 3}), integers({1 << 16}, 2, kFloat32)};
  const auto copies = parallel::broadcast_coalesced(tensors, on.first(3));
  REQUIRE(copies.size() == 3);
  for (int i = 0; i < 3; ++i) {
    const auto& row = copies[static_cast<std::size_t>(i)];
    REQUIRE(row.size() == tensors.size());
    for (std::size_t j = 0; j < tensors.size(); ++j) {
      CHECK(row[j].device() == on(i));
      CHECK(row[j].dtype() == tensors[j].dtype());
      CHECK(equal(row[j].to(tensors[j].device()), tensors[j]));
      if (row[j].numel() == 0) continue;
      CHECK((row[j].data_ptr() == tensors[j].data_ptr()) == (tensors[j].device() == on(i)));
    }
  }
}

TEST_CASE("C15: a change in place of one copy spoils no other that backward needs", "[contract]") {
  ON_EVERY_DEVICE(on);
  const Tensor w = tensor({3.0}).requires_grad_();
  const auto copies = parallel::broadcast_coalesced(std::vector{w, tensor({5.0}), tensor({7.0})}, on.first(2));
  const Tensor out = copies[1][0] * copies[1][1];
  Tensor changed = copies[1][2];
  changed.add_(1);
  out.backward(ones({1}, kFloat32, on(1)));
  CHECK(w.grad().item() == 5);
  Tensor needed = copies[1][1];
  const Tensor again = copies[1][0] * needed;
  needed.add_(1);
  check_error<AutogradError>([&] { again.backward(ones({1}, kFloat32, on(1))); }, {"mul"});
}

TEST_CASE("C16: broadcast takes strided tensors of any device, and sums their gradients", "[contract]") {
  ON_EVERY_DEVICE(on);
  for (const Device home : {cpu(), on(0), on(3)}) {
    Tensor x = integers({2, 3}).to(home).requires_grad_();
    const auto copies = parallel::broadcast(x.transpose(0, 1), on.first(3));
    for (int i = 0; i < 3; ++i) {
      CHECK(copies[static_cast<std::size_t>(i)].device() == on(i));
      CHECK(equal(copies[static_cast<std::size_t>(i)].detach().to(home), x.detach().transpose(0, 1)));
    }
    ((copies[0] * 2).sum() + (copies[2] * 3).sum().to(on(0))).backward();
    CHECK(x.grad().device() == home);
    CHECK(equal(x.grad(), full({2, 3}, 5, kFloat64, home)));
  }
}

TEST_CASE("C16: what broadcast and replicate refuse", "[contract]") {
  ON_EVERY_DEVICE(on);
  check_error<ValueError>([&] { parallel::broadcast(ones({1}), {}); }, {"broadcast", "empty"});
  CHECK_THROWS_AS(parallel::broadcast(Tensor(), on.first(2)), Error);
  check_error<ValueError>([&] { replicate(Scale(), {}); }, {"replicate", "empty"});
  Mlp model;
  model.fc2.to(on(1));
  check_error<DeviceError>([&] { replicate(model, on.first(2)); }, {"fc2.weight", str(on(1)), str(on(0))});
}
