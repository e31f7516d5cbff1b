// Gradients summed on every device, and the optimizer stepping there.

#include <cmath>
#include <numeric>

#include "../../engine/ops_internal.h"
#include "helpers.h"

using namespace tandem;
using namespace tandem::test;
using parallel::DataParallel;
using parallel::Phase;
using parallel::Synchronous;

namespace {

std::int64_t bytes_in(const parallel::Ledger& ledger, Phase phase) {
  std::int64_t bytes = 0;
  for (const auto& t : ledger.totals()) bytes += t.phase == phase ? t.bytes : 0;
  return bytes;
}

bool all_equal(const std::vector<std::uint64_t>& sums) {
  return std::equal(sums.begin() + 1, sums.end(), sums.begin());
}

template <class Opt>
void train(DataParallel<Mlp>& net, Opt& optimizer, int steps, std::int64_t rows = 12) {
  for (int i = 0; i < steps; ++i) {
    optimizer.zero_grad();
    const Tensor x = integers({rows, 6}, i, kFloat32) / 4;
    const Tensor y = integers({rows, 3}, i + 1, kFloat32) / 4;
    net.forward_loss(nn::MSELoss{}, x, y).backward();
    optimizer.step();
  }
}

std::vector<double> all_values(const nn::Module& m) {
  std::vector<double> all;
  for (const Tensor& p : m.parameters()) {
    for (const double v : values(p)) all.push_back(v);
  }
  return all;
}

struct Mixed : nn::Module {
  nn::Linear used{2, 2}, unused{2, 2}, frozen{2, 2};
  nn::BatchNorm1d norm{2};
  Tensor forward(const Tensor& x) { return norm(used(frozen(x)) + used(x)); }
  TANDEM_MODULE(Mixed, used, unused, frozen, norm)
};

}  // namespace

TEST_CASE("optimizers on every device train as one does, and nothing is broadcast", "[synchronous]") {
  ON_EVERY_DEVICE(on);
  const auto options = optim::AdamOptions{.lr = 0.01};
  Mlp model;
  Mlp other;
  other.load_state_dict(model.state_dict());
  const parallel::DataParallelOptions copies{.transport = parallel::TransportKind::Copies};

  DataParallel reference(other, on.first(3), copies);
  optim::Adam adam(other.parameters(), options);
  train(reference, adam, 5);
  CHECK(bytes_in(reference.ledger(), Phase::Replicate) > 0);

  DataParallel net(model, on.first(3), copies);
  Synchronous<optim::Adam> optimizer(net, options);
  net.ledger().clear();
  train(net, optimizer, 5);
  CHECK(all_values(model) == all_values(other));
  CHECK(net.explain(ones({3, 6})).find("gradients summed on every device; 0 bytes to copy") != std::string::npos);
  CHECK(reference.explain(ones({3, 6})).find("gradients reduced; ") != std::string::npos);
  CHECK(bytes_in(net.ledger(), Phase::Replicate) == 0);
  CHECK(all_equal(optimizer.checksums()));
  optimizer.check();
  for (int i = 0; i < 3; ++i) {
    std::int64_t steps = 0;
    for (const auto& t : net.ledger().totals()) {
      if (t.device == on(i) && t.phase == Phase::Step) steps += t.calls;
    }
    CHECK(steps == 5);
  }
}

TEST_CASE("steps on every device leave bytes and nodes where they were, and repeat bit for bit", "[synchronous]") {
  ON_EVERY_DEVICE(on);
  const auto run = [&on] {
    manual_seed(4);
    Mlp model;
    DataParallel net(model, on.first(3));
    Synchronous<optim::Adam> optimizer(net, {.lr = 0.01});
    train(net, optimizer, 3);
    const std::int64_t nodes = live_nodes();
    std::vector<std::size_t> bytes;
    for (const Device d : on.first(3)) bytes.push_back(memory_stats(d).allocated);
    train(net, optimizer, 200);
    CHECK(live_nodes() == nodes);
    for (int i = 0; i < 3; ++i) CHECK(memory_stats(on(i)).allocated == bytes[static_cast<std::size_t>(i)]);
    return all_values(model);
  };
  CHECK(run() == run());
}

TEST_CASE("parameters stay equal on every device by every transport", "[synchronous]") {
  ON_EVERY_DEVICE(on);
  using Kind = parallel::TransportKind;
  for (const Kind kind : {Kind::Auto, Kind::Copies, Kind::Host}) {
    Mlp model;
    DataParallel net(model, on.first(4), {.transport = kind, .bucket_bytes = 64});
    Synchronous<optim::SGD> optimizer(net, {.lr = 0.05, .momentum = 0.9});
    optimizer.set_check_every(1);
    train(net, optimizer, 4);
    const auto sums = optimizer.checksums();
    REQUIRE(sums.size() == 4);
    CHECK(all_equal(sums));
  }
}

TEST_CASE("devices without a chunk get the gradients too", "[synchronous]") {
  ON_EVERY_DEVICE(on);
  Scale model;
  DataParallel net(model, on.first(4));
  Synchronous<optim::SGD> optimizer(net, {.lr = 0.5});
  net(tensor({2.0, 4.0})).sum().backward();
  optimizer.step();
  CHECK(model.w.item() == 0);  // 3 - 0.5 (2 + 4)
  CHECK(all_equal(optimizer.checksums()));
  net(ones({4})).sum().backward();
  optimizer.step();
  CHECK(model.w.item() == -5);  // gradients add up until they are cleared
  CHECK(all_equal(optimizer.checksums()));
}

TEST_CASE("unused and frozen parameters, modules used twice, and buffers do as they do without", "[synchronous]") {
  ON_EVERY_DEVICE(on);
  Mixed model;
  model.frozen.requires_grad_(false);
  const auto unused = values(model.unused.weight);
  const auto frozen = values(model.frozen.weight);
  const auto used = values(model.used.weight);
  DataParallel net(model, on.first(2));
  Synchronous<optim::AdamW> optimizer(net, {.lr = 0.1, .weight_decay = 0.5});
  for (int i = 0; i < 3; ++i) {
    optimizer.zero_grad();
    (net(integers({6, 2}, i, kFloat32)) * integers({6, 2}, i + 1, kFloat32)).sum().backward();
    optimizer.step();
  }
  CHECK(values(model.unused.weight) == unused);
  CHECK(values(model.frozen.weight) == frozen);
  CHECK(values(model.used.weight) != used);
  CHECK(model.norm.num_batches_tracked.item<std::int64_t>() == 3);
  optimizer.check();
}

TEST_CASE("changes by hand, thawing and freezing reach every device", "[synchronous]") {
  ON_EVERY_DEVICE(on);
  Mlp model;
  DataParallel net(model, on.first(3));
  Synchronous<optim::SGD> optimizer(net, {.lr = 0.1});
  train(net, optimizer, 1);
  optimizer.zero_grad();
  net(ones({6, 6})).sum().backward();
  {
    const NoGradGuard no_grad;
    model.fc1.weight.mul_(0.5);  // between backward and step
  }
  model.fc2.bias.requires_grad_(false);
  const auto bias = values(model.fc2.bias);
  optimizer.step();
  CHECK(values(model.fc2.bias) == bias);
  optimizer.check();
  model.fc2.bias.requires_grad_(true);
  train(net, optimizer, 2);
  CHECK(values(model.fc2.bias) != bias);
  optimizer.check();
  model.load_state_dict(Mlp().state_dict());
  train(net, optimizer, 1);
  optimizer.check();
}

TEST_CASE("a gradient that was changed on one device alone is refused, and nothing is stepped", "[synchronous]") {
  ON_EVERY_DEVICE(on);
  Mlp model;
  DataParallel net(model, on.first(2));
  Synchronous<optim::SGD> optimizer(net, {.lr = 0.1});
  train(net, optimizer, 1);
  const auto before = all_values(model);
  const std::vector<std::string> message{"'fc1.weight'", str(on(0)), str(on(1)), "zero_grad()"};

  model.zero_grad();
  check_error<AutogradError>([&] { optimizer.step(); }, message);
  net(ones({4, 6})).sum().backward();  // the other device's gradients have piled up
  check_error<AutogradError>([&] { optimizer.step(); }, message);

  optimizer.zero_grad();
  net(ones({4, 6})).sum().backward();
  optim::clip_grad_norm_(model.parameters(), 1e-3);
  check_error<AutogradError>([&] { optimizer.step(); }, message);
  CHECK(all_values(model) == before);

  optimizer.zero_grad();
  net(ones({4, 6})).sum().backward();
  CHECK(optimizer.clip_grad_norm_(1e-3) > 1e-3);
  optimizer.step();
  CHECK(all_values(model) != before);
  optimizer.check();

  for (const bool mean : {false, true}) {  // added to in place, and out of place
    optimizer.zero_grad();
    const Tensor penalty = mean ? model.fc1.weight.mean() : (model.fc1.weight * model.fc1.weight).sum();
    (net(ones({4, 6})).sum() + penalty).backward();
    check_error<AutogradError>([&] { optimizer.step(); }, message);
  }

  optimizer.zero_grad();
  const auto hook = model.fc1.weight.register_hook([](const Tensor& g) { return g * 2; });
  CHECK_THROWS_AS(net(ones({4, 6})).sum().backward(), AutogradError);
  const Tensor doubled = grad({net(ones({4, 6})).sum()}, {model.fc1.weight})[0];  // reaches no device's parameters
  CHECK(doubled.defined());
}

TEST_CASE("gradients that are there before, and conversions in between, are the same on every device",
          "[synchronous]") {
  ON_EVERY_DEVICE(on);
  for (const int count : {1, 2}) {
    Mlp model;
    DataParallel net(model, on.first(count));
    net(ones({4, 6})).sum().backward();
    model.fc2.bias.grad().mul_(3);
    Synchronous<optim::Adam> optimizer(net, {.lr = 0.1});
    net(ones({4, 6})).sum().backward();
    CHECK(values(model.fc2.bias.grad()) == std::vector<double>{16, 16, 16});
    optimizer.step();
    optimizer.check();
    optimizer.clip_grad_norm_(0.1);
    net(ones({4, 6})).sum().backward();
    net.to(kFloat64);
    optimizer.step();
    optimizer.check();
    CHECK(model.fc1.bias.dtype() == kFloat64);
  }
}

TEST_CASE("check() takes changes by hand for what they are", "[synchronous]") {
  ON_EVERY_DEVICE(on);
  Mlp model;
  DataParallel net(model, on.first(2));
  Synchronous<optim::SGD> optimizer(net);
  {
    const NoGradGuard no_grad;
    model.fc1.weight.mul_(2);
  }
  optimizer.check();
  model.load_state_dict(Mlp().state_dict());
  optimizer.check();
  CHECK(all_equal(optimizer.checksums()));
}

TEST_CASE("a module that has moved, and parameters that cannot be moved any more, are refused", "[synchronous]") {
  ON_EVERY_DEVICE(on);
  Mlp model;
  DataParallel net(model, on.first(2));
  Synchronous<optim::SGD> optimizer(net);
  net(ones({4, 6})).sum().backward();
  net.to(on(2));
  check_error<DeviceError>([&] { optimizer.step(); }, {"'fc1.weight'", str(on(2))});
  net.to(on(0));
  optimizer.step();
  optimizer.check();
  model.fc1.weight.set_data(model.fc1.weight.detach().t().contiguous().t());
  check_error<ValueError>([&] { net(ones({4, 6})); }, {"contiguous leaf", "(8, 6)"});
}

TEST_CASE("an error of one step comes out as it is, and changes nothing", "[synchronous]") {
  ON_EVERY_DEVICE(on);
  Mlp model;
  DataParallel net(model, on.first(2));
  Synchronous<optim::Adam> optimizer(net, {.lr = 0.1});
  optimizer.set_check_finite(true);
  const auto before = all_values(model);
  net(full({4, 6}, INFINITY)).sum().backward();
  check_error<ValueError>([&] { optimizer.step(); }, {"Adam", "not finite"});
  CHECK(all_values(model) == before);
  train(net, optimizer, 2);
  optimizer.check();
}

TEST_CASE("when its optimizer is gone, a DataParallel is as any other", "[synchronous]") {
  ON_EVERY_DEVICE(on);
  Scale model;
  DataParallel net(model, on.first(2));
  {
    Synchronous<optim::SGD> optimizer(net, {.lr = 1});
    net(ones({2})).sum().backward();
    optimizer.step();
    optimizer.zero_grad();
  }
  const auto hook = model.w.register_hook([](const Tensor& g) { return g * 10; });
  net(ones({2})).sum().backward();
  CHECK(model.w.grad().item() == 20);
  CHECK(net.explain(ones({2})).find("gradients reduced") != std::string::npos);
}

TEST_CASE("the checksum notices one bit, and names the parameter and the device", "[synchronous]") {
  ON_EVERY_DEVICE(on);
  Mlp model;
  model.to(kFloat64);
  DataParallel net(model, on.first(3));
  parallel::SynchronizedParameters group = net.synchronize();
  CHECK(all_equal(group.checksums()));
  group.check();
  const Tensor one = group.on_devices()[2][1].detach().narrow(0, 3, 1);
  copy_values(one, full({1}, std::nextafter(one.item(), 10.0), kFloat64, one.device()));
  CHECK_FALSE(all_equal(group.checksums()));
  check_error<AutogradError>([&] { group.check(); }, {"'fc1.bias'", str(on(2)), str(on(0))});
}

TEST_CASE("schedules and states reach every device", "[synchronous]") {
  ON_EVERY_DEVICE(on);
  const auto run = [&on](bool resume) {
    manual_seed(1);
    Mlp model;
    DataParallel net(model, on.first(2));
    Synchronous<optim::Adam> optimizer(net, {.lr = 0.02});
    optim::StepLR schedule(optimizer, 1, 0.5);
    train(net, optimizer, 2);
    schedule.step();
    if (resume) {
      Synchronous<optim::Adam> next(net, {.lr = 1});
      next.load_state(optimizer.state());
      CHECK(next.lr() == 0.01);
      train(net, next, 2);
      next.check();
    } else {
      train(net, optimizer, 2);
      optimizer.check();
    }
    return all_values(model);
  };
  CHECK(run(true) == run(false));
}

TEST_CASE("gradients of gradients reach every device's parameters", "[synchronous]") {
  ON_EVERY_DEVICE(on);
  Scale model;
  DataParallel net(model, on.first(2));
  parallel::SynchronizedParameters group = net.synchronize();
  const Tensor x = tensor({1.0, 2.0}).requires_grad_();
  const Tensor y = net(x);
  const Tensor g = grad({(y * y).sum()}, {x}, {}, {.create_graph = true})[0];  // 2 w^2 x
  g.sum().backward();
  for (const auto& own : group.on_devices()) CHECK(own[0].grad().item() == 4 * 3 * 3);  // 4 w sum(x)
}

TEST_CASE("a parameter that is a view cannot be synchronised", "[synchronous]") {
  ON_EVERY_DEVICE(on);
  Mlp model;
  model.fc2.weight.set_data(zeros({8, 3}).t());
  DataParallel net(model, on.first(2));
  check_error<ValueError>([&] { Synchronous<optim::SGD> optimizer(net); }, {"'fc2.weight'", "contiguous"});
}
