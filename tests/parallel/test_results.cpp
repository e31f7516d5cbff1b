// What comes out of a DataParallel other than concatenated tensors, and how batches are cut.

#include <string>

#include "helpers.h"

using namespace tandem;
using namespace tandem::test;
using parallel::DataParallel;
using parallel::Split;

namespace {

struct Summary {
  Tensor rows;
  parallel::First<std::string> name;
  parallel::PerReplica<std::int64_t> counts;
  parallel::PerReplica<Tensor> shards;
  parallel::Sum<> total;
  parallel::Sum<int> calls;
  parallel::WeightedMean<> mean;
  parallel::WeightedMean<double> share;
  TANDEM_TREE(Summary, rows, name, counts, shards, total, calls, mean, share)
};

struct Summarize : nn::Module {
  nn::Parameter w{ones({1}, kFloat64)};
  Summary forward(const Tensor& x) {
    const Tensor y = x * w;
    const auto replica = parallel::current_replica();
    return {.rows = y,
            .name = {"replica " + std::to_string(replica.index)},
            .counts = {{x.size(0)}},
            .shards = {{y}},
            .total = {y.sum()},
            .calls = {1},
            .mean = {y.mean()},
            .share = {y.detach().mean().item()}};
  }
  TANDEM_MODULE(Summarize, w)
};

}  // namespace

TEST_CASE("each leaf of a result can have its own rule", "[results]") {
  ON_EVERY_DEVICE(on);
  Summarize model;
  DataParallel net(model, on.first(4));
  const Tensor x = tensor({1.0, 2.0, 3.0, 4.0, 10.0}, kFloat64);
  const Summary out = net(x);  // chunks of 2, 2 and 1
  CHECK(values(out.rows) == values(x));
  CHECK(out.name.value == "replica 0");
  CHECK(out.counts.values == std::vector<std::int64_t>{2, 2, 1});
  REQUIRE(out.shards.values.size() == 3);
  CHECK(out.shards.values[1].device() == on(1));
  CHECK(values(out.shards.values[2]) == std::vector<double>{10});
  CHECK(out.total.value.item() == 20);
  CHECK(out.calls.value == 3);
  CHECK(out.mean.value.item() == Approx(4));
  CHECK(out.mean.value.sizes() == Shape{});
  CHECK(out.share.value == Approx(4));
  out.mean.value.backward();
  CHECK(model.w.grad().item() == Approx(4));
}

TEST_CASE("a loss inside the replicas is that of one device, with uneven chunks too", "[results]") {
  ON_EVERY_DEVICE(on);
  Mlp model;
  model.to(kFloat64);
  for (const std::int64_t batch : {1, 5, 8, 9}) {
    const Tensor x = integers({batch, 6}, 2);
    const Tensor y = randint(0, 3, {batch});
    model.zero_grad();
    const Tensor one = cross_entropy(model(x), y);
    one.backward();
    std::vector<Tensor> grads;
    for (const Tensor& p : model.parameters()) grads.push_back(p.grad().clone());
    for (const int k : {1, 2, 4}) {
      INFO("batch " << batch << " on " << k);
      model.zero_grad();
      DataParallel net(model, on.first(k), {.output_device = on(k - 1)});
      const Tensor loss = net.forward_loss(nn::CrossEntropyLoss(), x, y);
      CHECK(loss.sizes() == Shape{});
      CHECK(loss.device() == on(k - 1));
      CHECK(loss.item() == Approx(one.item()).epsilon(1e-12));
      loss.backward();
      for (std::size_t i = 0; i < grads.size(); ++i) {
        CHECK(allclose(model.parameters()[i].grad(), grads[i], 1e-10, 1e-14));
      }
      for (const auto& e : net.ledger().entries()) {
        if (e.phase == parallel::Phase::Gather) CHECK(e.bytes <= 8 * k);
      }
    }
  }
}

TEST_CASE("with the loss inside the replicas the first device needs little more memory than the others", "[results]") {
  ON_EVERY_DEVICE(on);
  nn::Linear model(2, 4000);
  const Tensor x = randn({64, 2});
  const Tensor y = randint(0, 4000, {64});
  DataParallel net(model, on.first(4));
  const auto step = [&] {
    model.zero_grad();
    net.forward_loss(nn::CrossEntropyLoss(), x, y).backward();
  };
  step();
  std::vector<std::size_t> before;
  for (const Device d : on.first(4)) {
    reset_peak_memory(d);
    before.push_back(memory_stats(d).allocated);
  }
  step();
  std::vector<double> peaks;
  for (int i = 0; i < 4; ++i) {
    peaks.push_back(static_cast<double>(memory_stats(on(i)).peak - before[static_cast<std::size_t>(i)]));
  }
  for (int i = 1; i < 4; ++i) CHECK(peaks[0] < 1.1 * peaks[static_cast<std::size_t>(i)]);
}

namespace {
struct Autoencoder : nn::Module {
  nn::Linear in{6, 2}, out{2, 6};
  Tensor encode(const Tensor& x) { return in(x); }
  Tensor forward(const Tensor& x) { return out(encode(x)); }
  TANDEM_MODULE(Autoencoder, in, out)
};
}  // namespace

TEST_CASE("other functions than forward run on the replicas", "[results]") {
  ON_EVERY_DEVICE(on);
  Autoencoder model;
  model.to(kFloat64);
  set_integers(model);
  DataParallel net(model, on.first(3));
  const Tensor x = integers({7, 6});
  CHECK(equal(net.invoke(&Autoencoder::encode, x).detach(), model.encode(x).detach()));
  const auto twice = [](Autoencoder& m, const Tensor& t) { return m(m(t)); };
  CHECK(equal(net.invoke(twice, x).detach(), twice(model, x).detach()));
}

TEST_CASE("batches are cut by the ceiling, evenly, or as given", "[results]") {
  ON_EVERY_DEVICE(on);
  using V = std::vector<std::int64_t>;
  CHECK(Split::balanced()(9, 4) == V{3, 2, 2, 2});
  CHECK(Split::balanced()(3, 4) == V{1, 1, 1});
  CHECK(Split::balanced()(0, 4) == V{0});
  CHECK(Split::sizes({2, 4})(6, 3) == V{2, 4});
  check_error<ValueError>([&] { Split::sizes({2, 4})(5, 3); }, {"2, 4", "6 elements", "5 elements"});
  check_error<ValueError>([&] { Split::sizes({1, 1, 1})(3, 2); }, {"3 chunks", "at most 2 devices"});
  check_error<ValueError>([&] { Split::sizes({1, 0}); }, {"1, 0"});

  Summarize model;
  const Tensor x = integers({9});
  for (const auto& [split, counts] :
       {std::pair(Split::ceil(), V{3, 3, 3}), {Split::balanced(), V{3, 2, 2, 2}}, {Split::sizes({1, 8}), V{1, 8}}}) {
    DataParallel net(model, on.first(4), {.split = split});
    const Summary out = net(x);
    CHECK(out.counts.values == counts);
    CHECK(equal(out.rows.detach(), x));
  }
}

TEST_CASE("explain tells the plan and does nothing", "[results]") {
  ON_EVERY_DEVICE(on);
  Mlp model;
  const auto storage = model.fc1.weight.data_ptr();
  DataParallel net(model, on.first(4), {.bucket_bytes = 64});
  const Tensor x = zeros({9, 6});
  const std::string text = net.explain(x, scalar_tensor(1.0));
  INFO(text);
  const auto has = [&](const std::string& part) { return text.find(part) != std::string::npos; };
  CHECK(has("Mlp on " + str(on.first(4)) + ": 3 of 4 devices, results on " + str(on(0))));
  CHECK(has("rows 0 to 3: args[0] float32 (3, 6), args[1] float32 (); 0 bytes"));
  CHECK(has("rows 3 to 6: args[0] float32 (3, 6), args[1] float32 (); 76 bytes"));
  CHECK(has(std::string("by ") + net.transport().name()));
  CHECK(has("bucket 1: 2 tensors, 56 float32 elements, gradients reduced; 512 bytes"));
  CHECK(model.fc1.weight.data_ptr() == storage);
  CHECK(net.ledger().entries().empty());
  const NoGradGuard no_grad;
  net(x);
  CHECK(net.explain(x).find("reduced; 0 bytes to copy") != std::string::npos);
  check_error<ShapeError>([&] { net.explain(x, zeros({4})); }, {"args[0]", "args[1]"});
}

namespace {

struct Inner : nn::Module {
  nn::Linear fc{3, 3};
  Tensor forward(const Tensor& x) { return fc(x.flatten(1)); }
  TANDEM_MODULE(Inner, fc)
};
struct Outer : nn::Module {
  Inner first, second;
  Outer() { second.fc = nn::Linear(4, 3); }
  Tensor forward(const Tensor& x) { return second(first(x)); }
  TANDEM_MODULE(Outer, first, second)
};

}  // namespace

TEST_CASE("a replica's error names the module that failed and the tensors that it was given", "[results]") {
  ON_EVERY_DEVICE(on);
  Outer model;
  for (const int k : {1, 2}) {
    DataParallel net(model, on.first(k));
    try {
      net(zeros({4, 3}));
      FAIL("no error");
    } catch (const parallel::ReplicaError& e) {
      const std::string text = e.what();
      INFO(text);
      CHECK(e.module() == "second.fc");
      CHECK(text.find("in second.fc (Linear), args[0] float32 (" + std::to_string(4 / k)) != std::string::npos);
      CHECK_THROWS_AS(std::rethrow_if_nested(e), ShapeError);
    }
  }
}

namespace {
struct Misuse : nn::Module {
  nn::Parameter w{ones({1})};
  std::function<void(Misuse&, const Tensor&)> act;
  Tensor forward(const Tensor& x) {
    Tensor y = x * w;
    if (act) act(*this, y);
    return y;
  }
  TANDEM_MODULE(Misuse, w)
};
}  // namespace

TEST_CASE("replicas refuse what has no meaning inside them", "[results]") {
  ON_EVERY_DEVICE(on);
  for (const int k : {1, 2}) {
    Misuse model, inner;
    DataParallel net(model, on.first(k));
    DataParallel nested(inner, on.first(2));
    const Tensor x = ones({4});
    model.act = [&](Misuse&, const Tensor& y) { nested(y); };
    check_error<parallel::ReplicaError>([&] { net(x); }, {"DataParallel", "inside replica 0"});
    model.act = [](Misuse& m, const Tensor&) { m.zero_grad(); };
    check_error<parallel::ReplicaError>([&] { net(x); }, {"zero_grad", "w is not a leaf"});
    model.act = [](Misuse&, const Tensor& y) { y.sum().backward(); };
    check_error<parallel::ReplicaError>([&] { net(x); }, {"backward", "inside a replica"});
    model.act = nullptr;
    net(x).sum().backward();
    CHECK(model.w.grad().item() == 4);
  }
}

TEST_CASE("a device listed twice is refused, and options out of range", "[results]") {
  ON_EVERY_DEVICE(on);
  Mlp model;
  check_error<ValueError>([&] { DataParallel(model, {on(0), on(1), on(0)}); }, {str(on(0)) + " is listed twice"});
  check_error<ValueError>([&] { DataParallel(model, on.first(2), {.bucket_bytes = 0}); }, {"bucket_bytes"});
  check_error<ValueError>([&] { DataParallel(model, on.first(2), {.dim = 1, .same_random_numbers = true}); },
                          {"dim = 1"});
  if (on.are_cpus()) {
    check_error<DeviceError>([&] { DataParallel(model, on.first(2), {.transport = parallel::TransportKind::NCCL}); },
                             {"NCCL", str(on.first(2))});
  }
}

namespace {
struct Noisy : nn::Module {
  nn::Dropout drop{0.5};
  Tensor forward(const Tensor& x) { return drop(drop(x) * 2 + rand({x.size(0), 3}, x.dtype(), x.device())); }
  TANDEM_MODULE(Noisy, drop)
};
}  // namespace

TEST_CASE("replicas can draw the numbers that one device would", "[results]") {
  ON_EVERY_DEVICE(on);
  Noisy model;
  const Tensor x = ones({10, 3});
  manual_seed(7);
  const Tensor first = model(x);
  const Tensor second = model(x);
  for (const int k : {1, 2, 3, 4}) {
    DataParallel net(model, on.first(k), {.same_random_numbers = true});
    manual_seed(7);
    CHECK(equal(net(x), first));
    CHECK(equal(net(x), second));
  }
}

namespace {
struct Counting : nn::Module {
  nn::Buffer used{full({1}, 2)}, counter{zeros({1})};
  nn::Parameter w{ones({1})};
  Tensor forward(const Tensor& x) {
    const Tensor y = x * w * used;
    counter.add_(1);
    return y;
  }
  TANDEM_MODULE(Counting, used, counter, w)
};
}  // namespace

TEST_CASE("buffers of a replica have versions of their own", "[results]") {
  ON_EVERY_DEVICE(on);
  Counting model;
  DataParallel net(model, on.first(2));
  net(ones({4})).sum().backward();
  CHECK(model.w.grad().item() == 8);
  CHECK(model.counter.item() == 1);
}
