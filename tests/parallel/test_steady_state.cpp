// What repeats must cost nothing more: threads, bytes, nodes, copies. And the ledger that shows it.

#include <dirent.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <functional>
#include <limits>
#include <thread>

#include "helpers.h"

using namespace tandem;
using namespace tandem::test;
using parallel::DataParallel;
using parallel::Phase;

namespace {

std::int64_t threads_of_process() {
  std::int64_t n = 0;
  DIR* dir = opendir("/proc/self/task");
  if (!dir) return 0;
  while (readdir(dir)) ++n;
  closedir(dir);
  return n;
}

std::int64_t bytes_in(const parallel::Ledger& ledger, Phase phase) {
  std::int64_t bytes = 0;
  for (const auto& t : ledger.totals()) bytes += t.phase == phase ? t.bytes : 0;
  return bytes;
}

std::int64_t calls_in(const parallel::Ledger& ledger, Phase phase, Device device) {
  for (const auto& t : ledger.totals()) {
    if (t.phase == phase && t.device == device) return t.calls;
  }
  return 0;
}

}  // namespace

TEST_CASE("training steps leave threads, bytes and nodes where they were", "[steady]") {
  ON_EVERY_DEVICE(on);
  Mlp model;
  optim::SGD sgd(model.parameters(), {.lr = 0.01, .momentum = 0.9});
  DataParallel net(model, on.first(3));
  const Tensor x = randn({7, 6});
  const Tensor y = randint(0, 3, {7});
  const auto step = [&] {
    sgd.zero_grad();
    cross_entropy(net(x), y).backward();
    sgd.step();
  };
  for (int i = 0; i < 5; ++i) step();
  const std::int64_t threads = threads_of_process();
  const std::int64_t nodes = live_nodes();
  std::vector<std::size_t> bytes;
  for (const Device d : on.first(3)) bytes.push_back(memory_stats(d).allocated);
  for (int i = 0; i < 1000; ++i) step();
  CHECK(threads_of_process() == threads);
  CHECK(live_nodes() == nodes);
  for (int i = 0; i < 3; ++i) CHECK(memory_stats(on(i)).allocated == bytes[static_cast<std::size_t>(i)]);
}

TEST_CASE("parameters are copied only when they have changed", "[steady]") {
  ON_EVERY_DEVICE(on);
  Mlp model;
  DataParallel net(model, on.first(2));
  const Tensor x = randn({4, 6});
  const NoGradGuard no_grad;
  net(x);
  CHECK(bytes_in(net.ledger(), Phase::Replicate) > 0);
  net.ledger().clear();
  net(x);
  CHECK(bytes_in(net.ledger(), Phase::Replicate) == 0);
  model.fc1.bias.add_(1);
  net(x);
  CHECK(bytes_in(net.ledger(), Phase::Replicate) > 0);
  CHECK(allclose(net(x), model(x)));
}

namespace {
struct Deep : nn::Module {
  std::vector<nn::Linear> layers{6, nn::Linear(16, 16)};
  nn::BatchNorm1d norm{16};
  std::function<void(std::size_t layer)> on_gradient;
  Deep() {
    for (nn::Linear& l : layers) l = nn::Linear(16, 16);
  }
  Tensor forward(Tensor x) {
    for (std::size_t i = 0; i < layers.size(); ++i) {
      if (on_gradient) {
        layers[i].weight.register_hook([f = on_gradient, i](const Tensor& g) {
          f(i);
          return g;
        });
      }
      x = relu(layers[i](x));
    }
    return norm(x);
  }
  TANDEM_MODULE(Deep, layers, norm)
};
}  // namespace

TEST_CASE("a replica is brought up to date by one copy per dtype", "[steady]") {
  ON_EVERY_DEVICE(on);
  Deep model;
  DataParallel net(model, on.first(3), {.bucket_bytes = 256});
  net(randn({6, 16}));
  for (const Device d : {on(1), on(2)}) CHECK(calls_in(net.ledger(), Phase::Replicate, d) == 2);  // float32 and int64
}

TEST_CASE("gradients are reduced while backward still runs, to the same bits as after it", "[steady]") {
  ON_EVERY_DEVICE(on);
  Deep model;
  const Tensor x = randn({12, 16});
  std::vector<std::vector<double>> grads;
  for (const std::int64_t bucket : {1, 1024, 1 << 30}) {
    model.zero_grad();
    std::atomic<std::int64_t> last_gradient{0};
    model.on_gradient = [&](std::size_t layer) {
      if (layer == 0) last_gradient = now_ns();
    };
    DataParallel net(model, on.first(3), {.transport = parallel::TransportKind::Copies, .bucket_bytes = bucket});
    const Tensor out = net(x);
    net.ledger().clear();
    sum(out * out).backward();
    std::int64_t first_reduction = std::numeric_limits<std::int64_t>::max();
    std::int64_t reductions = 0;
    for (const auto& e : net.ledger().entries()) {
      if (e.phase != Phase::Reduce) continue;
      first_reduction = std::min(first_reduction, e.begin_ns);
      ++reductions;
    }
    CHECK(reductions == (bucket == 1 ? 14 : bucket == 1024 ? 6 : 1));
    // The clock of hooks is the host's, so only CPU devices can be compared.
    if (on.are_cpus() && bucket < 1 << 30) CHECK(first_reduction < last_gradient);
    if (on.are_cpus() && bucket == 1 << 30) CHECK(first_reduction > last_gradient);
    std::vector<double> all;
    for (const Tensor& p : model.parameters()) {
      for (const double v : values(p.grad())) all.push_back(v);
    }
    grads.push_back(all);
  }
  CHECK(grads[1] == grads[0]);
  CHECK(grads[2] == grads[0]);
}

TEST_CASE("wrapping keeps handles, values and gradients of the parameters", "[steady]") {
  ON_EVERY_DEVICE(on);
  Mlp model;
  const Tensor weight = model.fc1.weight;
  const std::vector<double> before = values(weight);
  model(ones({1, 6})).sum().backward();
  const std::vector<double> gradient = values(weight.grad());
  DataParallel net(model, on.first(2));
  const NoGradGuard no_grad;
  net(ones({2, 6}));
  CHECK(model.fc1.weight.is_same(weight));
  CHECK(values(weight) == before);
  CHECK(values(weight.grad()) == gradient);
  CHECK(weight.is_contiguous());
}

TEST_CASE("a graph whose parameters have been copied anew is refused, not used", "[steady]") {
  ON_EVERY_DEVICE(on);
  Mlp model;
  DataParallel net(model, on.first(2));
  const Tensor out = net(ones({4, 6}));
  {
    const NoGradGuard no_grad;
    model.fc2.weight.mul_(2);
    net(ones({4, 6}));
  }
  CHECK_THROWS_AS(out.sum().backward(), AutogradError);
  model.zero_grad();
  net(ones({4, 6})).sum().backward();
  CHECK(model.fc2.weight.grad().defined());
}

TEST_CASE("the same run gives the same bits", "[steady]") {
  ON_EVERY_DEVICE(on);
  const auto losses = [&on] {
    manual_seed(3);
    Mlp model;
    optim::Adam adam(model.parameters(), {.lr = 0.01});
    DataParallel net(model, on.first(4));
    std::vector<double> all;
    for (int i = 0; i < 20; ++i) {
      adam.zero_grad();
      const Tensor loss = mse_loss(net(randn({9, 6})), randn({9, 3}));
      loss.backward();
      adam.step();
      all.push_back(loss.item());
    }
    return all;
  };
  CHECK(losses() == losses());
}

TEST_CASE("the ledger counts phases, devices and bytes", "[ledger]") {
  ON_EVERY_DEVICE(on);
  Mlp model;
  DataParallel net(model, on.first(2));
  for (int i = 0; i < 3; ++i) net(randn({4, 6})).sum().backward();
  parallel::Ledger& ledger = net.ledger();
  for (const Device d : on.first(2)) CHECK(calls_in(ledger, Phase::Forward, d) == 3);
  CHECK(calls_in(ledger, Phase::Backward, on(1)) >= 3);
  CHECK(bytes_in(ledger, Phase::Scatter) == 3 * 2 * (6 + 3) * 4);  // half of x, and of the gradient of the result
  CHECK(bytes_in(ledger, Phase::Gather) == 3 * 2 * 3 * 4);
  CHECK(bytes_in(ledger, Phase::Reduce) == 3 * (6 * 8 + 8 + 8 * 3 + 3) * 4);
  for (const auto& e : ledger.entries()) CHECK(e.end_ns >= e.begin_ns);
  const std::string table = ledger.table();
  CHECK(table.find(str(on(0))) != std::string::npos);
  CHECK(table.find(str(on(1))) != std::string::npos);
  for (const char* word : {"scatter", "replicate", "forward", "gather", "backward", "reduce"}) {
    CHECK(table.find(word) != std::string::npos);
  }
  const std::string trace = ledger.chrome_trace();
  const auto traced = [&](const std::string& part) { return trace.find(part) != std::string::npos; };
  CHECK(traced("\"name\":\"forward\""));
  CHECK(traced("\"name\":\"" + str(on(1)) + " copies\""));
  CHECK(traced("\"name\":\"scatter for " + str(on(1)) + "\""));
  CHECK(traced("\"ph\":\"s\",\"pid\":0,\"tid\":1,"));               // from the first device's copies
  CHECK(traced("\"ph\":\"f\",\"bp\":\"e\",\"pid\":0,\"tid\":4,"));  // to the second's
  for (const auto& e : ledger.entries()) {
    CHECK((e.bytes > 0) == !e.sources.empty());
    if (e.phase == Phase::Reduce) CHECK(e.sources == std::vector<Device>{on(1)});
  }
  ledger.clear();
  CHECK(ledger.entries().empty());
}

TEST_CASE("the timeline draws the last step that ran backward", "[ledger]") {
  ON_EVERY_DEVICE(on);
  parallel::Ledger ledger;
  const auto enter = [&](Phase phase, int device, std::int64_t begin, std::int64_t end) {
    ledger.add(phase, on(device), TimeMark(begin * 1000), TimeMark(end * 1000), 0);
  };
  enter(Phase::Check, 0, 0, 1);
  enter(Phase::Backward, 0, 1, 2);
  enter(Phase::Check, 0, 100, 101);
  enter(Phase::Scatter, 1, 102, 103);
  enter(Phase::Forward, 0, 102, 105);
  enter(Phase::Forward, 1, 104, 106);
  enter(Phase::Gather, 0, 107, 107);
  enter(Phase::Reduce, 0, 112, 114);
  enter(Phase::Backward, 0, 109, 116);
  enter(Phase::Backward, 1, 108, 115);
  enter(Phase::Step, 0, 118, 119);
  const std::string name[] = {str(on(0)), str(on(1))};
  CHECK(ledger.timeline(20) == name[0] + std::string(8 - name[0].size(), ' ') + "|ccffff.g.BBBRRRBB.SS|\n" +      //
                                   name[1] + std::string(8 - name[1].size(), ' ') + "|..ssfff.BBBBBBBB....|\n" +  //
                                   "         0              19 us\n");
}

TEST_CASE("the ledger keeps the last entries and all sums", "[ledger]") {
  ON_EVERY_DEVICE(on);
  parallel::Ledger ledger(10);
  for (int i = 0; i < 25; ++i) ledger.add(Phase::Step, on(0), TimeMark(i), TimeMark(i + 2), 1);
  CHECK(ledger.entries().size() == 10);
  CHECK(ledger.entries().front().begin_ns == 15);
  REQUIRE(ledger.totals().size() == 1);
  CHECK(ledger.totals()[0].calls == 25);
  CHECK(ledger.totals()[0].bytes == 25);
  CHECK(ledger.totals()[0].seconds == Approx(50e-9));
  CHECK(ledger.totals()[0].wait_seconds == 0);
  ledger.add(Phase::Forward, on(0), TimeMark(30), TimeMark(40), 0);
  CHECK(ledger.totals()[0].wait_seconds == Approx(4e-9));  // the last step ended at 26
}

TEST_CASE("two wrappers on the same devices in two threads finish with the right values", "[steady]") {
  ON_EVERY_DEVICE(on);
  const auto train = [&on](std::uint64_t seed) {
    const DefaultDeviceGuard device(on(0));
    Scale model;
    optim::SGD sgd(model.parameters(), {.lr = 0.001});
    DataParallel net(model, on.first(2));
    const Tensor x = full({4}, static_cast<double>(seed));
    for (int i = 0; i < 100; ++i) {
      sgd.zero_grad();
      net(x).sum().backward();
      sgd.step();
    }
    return model.w.item();
  };
  const double alone[2] = {train(1), train(2)};
  double together[2] = {};
  std::thread a([&] { together[0] = train(1); });
  std::thread b([&] { together[1] = train(2); });
  a.join();
  b.join();
  CHECK(together[0] == alone[0]);
  CHECK(together[1] == alone[1]);
}
