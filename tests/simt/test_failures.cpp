// The engine and DataParallel when a GPU refuses a call: the error says what failed and where, the other replicas are
// waited for, nothing is lost, and the next call gives the right values. A dead GPU says so at once from then on. Each
// test that ends a GPU has its own.

#include <tandem/tandem.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <functional>
#include <future>
#include <string>
#include <thread>

#include "../../kernels/simt/control.h"
#include "../engine/helpers.h"

using namespace tandem;
using namespace tandem::test;
using Catch::Matchers::StartsWith;
using parallel::DataParallel;
using parallel::ReplicaError;

namespace {

constexpr int kOutOfMemory = 2, kTooManyResources = 701, kIllegalAddress = 700;
constexpr int kSystemError = 2;  // NCCL's

const bool quiet = (simt::print_reports(false), true);

/// y = 2 x w + w, in two launches; w is 3.
struct Line : nn::Module {
  nn::Parameter w{full({1}, 3.0, kFloat64, cuda(0))};
  Tensor forward(const Tensor& x) { return x * 2 * w + w; }
  TANDEM_MODULE(Line, w)
};

const std::vector<double> kX = {1, 2, 3, 4}, kY = {9, 15, 21, 27};
constexpr double kGrad = 2 * (1 + 2 + 3 + 4) + 4;

Tensor batch(Device device) { return from_vector(kX, {4}).to(kFloat64).to(device); }

/// The message of the first, and what is nested in it.
template <class Nested>
std::string failure_of(DataParallel<Line>& net, const Tensor& x) {
  try {
    net(x);
  } catch (const ReplicaError& e) {
    CHECK_THROWS_AS(std::rethrow_if_nested(e), Nested);
    return e.what();
  }
  FAIL("no ReplicaError");
  return "";
}

void empty_caches() {
  for (int i = 0; i < 2; ++i) {
    synchronize(cuda(i));
    empty_cache(cuda(i));
  }
}

/// Every one, and its second try, until something gives up.
void fail_allocations() {
  for (int n = 1; n <= 64; ++n) simt::fail(simt::Call::Malloc, n, kOutOfMemory);
}

void check_step(Line& model, DataParallel<Line>& net, const Tensor& x) {
  model.zero_grad();
  const Tensor y = net(x);
  CHECK(has_values(y, kY));
  y.sum().backward();
  CHECK(has_values(model.w.grad(), {kGrad}));
}

}  // namespace

TEST_CASE("an allocation that fails once is tried again without the cache, and nobody notices") {
  const Tensor x = batch(cuda(0));
  { const Tensor cached = zeros({1 << 18}, kFloat64, cuda(0)); }
  CHECK(memory_stats(cuda(0)).reserved >= 8 << 18);
  simt::fail(simt::Call::Malloc, 1, kOutOfMemory);
  const Tensor large = full({1 << 19}, 2.0, kFloat64, cuda(0));
  CHECK(memory_stats(cuda(0)).reserved == memory_stats(cuda(0)).allocated);
  CHECK(large.sum().item() == 2 << 19);
  CHECK(has_values(x, kX));
}

TEST_CASE("a replica that runs out of memory: the error names it, nothing is lost, and the next call works") {
  Line model;
  DataParallel<Line> net(model, {cuda(0), cuda(1)});
  const Tensor x = batch(cuda(0));
  check_step(model, net, x);
  const std::int64_t nodes = live_nodes();
  for (int call = 0; call < 5; ++call) {
    empty_caches();
    const std::size_t before[] = {memory_stats(cuda(0)).allocated, memory_stats(cuda(1)).allocated};
    fail_allocations();
    bool thrown = false;
    try {
      net(x);
    } catch (const Error& e) {
      thrown = true;
      CHECK_THAT(e.what(), ContainsSubstring("out of memory: requested "));
    }
    simt::clear_failures();
    CHECK(thrown);
    CHECK(live_nodes() == nodes);
    for (int i = 0; i < 2; ++i) CHECK(memory_stats(cuda(i)).allocated == before[i]);
    check_step(model, net, x);
  }
}

TEST_CASE("memory that runs out in backward leaves gradients as they were, and the next step works") {
  Line model;
  DataParallel<Line> net(model, {cuda(0), cuda(1)});
  const Tensor x = batch(cuda(0));
  check_step(model, net, x);
  Tensor loss = net(x).sum();
  empty_caches();
  fail_allocations();
  CHECK_ERROR(loss.backward(), Error, "out of memory: requested ");
  simt::clear_failures();
  CHECK(has_values(model.w.grad(), {kGrad}));
  loss = Tensor();
  check_step(model, net, x);
}

namespace {
/// Tells when the gradient of its first layer, the last of all, has been made on the second device.
struct Tower : nn::Module {
  std::vector<nn::Linear> layers;
  std::function<void()> on_last_gradient;
  Tensor forward(Tensor x) {
    for (std::size_t i = 0; i < layers.size(); ++i) {
      if (i == 0 && parallel::current_replica().index == 1 && on_last_gradient) {
        layers[0].weight.register_hook([f = on_last_gradient](const Tensor& g) {
          static_cast<void>(g.sum().item());  // waits for the computation of this device
          f();
          return g;
        });
      }
      x = relu(layers[i](x));
    }
    return x;
  }
  TANDEM_MODULE(Tower, layers)
};
}  // namespace

TEST_CASE("gradients are summed beside the rest of backward: the last is made while the first sum is held up") {
  const DefaultDeviceGuard home(cuda(0));
  Tower model;
  for (int i = 0; i < 4; ++i) model.layers.emplace_back(3, 3);
  DataParallel net(model, {cuda(0), cuda(1)}, {.bucket_bytes = 1});
  REQUIRE(net.transport().name() == std::string("NCCL"));
  const Tensor x = rand({6, 3});
  net(x).sum().backward();
  std::vector<std::vector<double>> wanted;
  for (const Tensor& p : model.parameters()) wanted.push_back(p.grad().to_vector());
  model.zero_grad();

  std::promise<void> made;
  std::int64_t last_gradient = 0;
  model.on_last_gradient = [&] {
    last_gradient = now_ns();
    made.set_value();
  };
  const Tensor loss = net(x).sum();
  net.ledger().clear();
  simt::pause_collectives(true);
  bool in_time = false;
  std::thread watch([&] {
    in_time = made.get_future().wait_for(std::chrono::seconds(60)) == std::future_status::ready;
    simt::pause_collectives(false);
  });
  loss.backward();
  watch.join();
  CHECK(in_time);
  for (std::size_t i = 0; i < wanted.size(); ++i) CHECK(model.parameters()[i].grad().to_vector() == wanted[i]);

  int sums = 0;
  for (const auto& e : net.ledger().entries()) {
    if (e.phase != parallel::Phase::Reduce) continue;
    CHECK(e.beside);
    ++sums;
    CHECK(e.end_ns > last_gradient);
  }
  CHECK(sums == 8);
}

namespace {
/// Fills what memory was freed last on the devices, in many sizes.
std::vector<Tensor> sevens() {
  std::vector<Tensor> all;
  for (int device = 0; device < 2; ++device) {
    for (std::int64_t n = 1; n <= 1 << 10; n *= 2) {
      for (int i = 0; i < 8; ++i) all.push_back(full({n}, 7, kFloat32, cuda(device)));
    }
  }
  return all;
}

bool all_sevens(const std::vector<Tensor>& tensors) {
  return std::all_of(tensors.begin(), tensors.end(),
                     [](const Tensor& t) { return eq(t, 7).to(kInt64).min().item() == 1; });
}

/// Ends a pause of collectives, from another thread, so that nobody who waits for one waits for ever.
std::thread resume_soon() {
  return std::thread([] {
    std::this_thread::sleep_for(std::chrono::milliseconds(600));
    simt::pause_collectives(false);
  });
}
}  // namespace

TEST_CASE("sums that nobody asked for are written where nobody else is") {
  const DefaultDeviceGuard home(cuda(0));
  Tower model;
  for (int i = 0; i < 4; ++i) model.layers.emplace_back(3, 3);
  DataParallel net(model, {cuda(0), cuda(1)}, {.bucket_bytes = 1});
  const parallel::SynchronizedParameters every_device = net.synchronize();
  std::vector<Tensor> others;
  model.on_last_gradient = [&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(200));  // the first device starts the other sums
    others = sevens();
  };
  const Tensor loss = net(rand({6, 3})).sum();
  simt::pause_collectives(true);
  std::thread resume = resume_soon();
  const std::vector<Tensor> grads = grad({loss}, model.parameters(), {}, {}, true);
  resume.join();
  CHECK(all_sevens(others));
  for (const Tensor& g : grads) CHECK(g.defined());
  for (const Tensor& p : every_device.on_devices()[1]) CHECK_FALSE(p.grad().defined());
}

TEST_CASE("a backward that fails gives no memory away that a sum still writes") {
  const DefaultDeviceGuard home(cuda(0));
  Tower model;
  for (int i = 0; i < 4; ++i) model.layers.emplace_back(3, 3);
  DataParallel net(model, {cuda(0), cuda(1)}, {.bucket_bytes = 1});
  const Tensor x = rand({6, 3});
  const Tensor loss = net(x).sum();
  model.to(kFloat64);
  simt::pause_collectives(true);
  std::thread resume = resume_soon();
  CHECK_THROWS_AS(loss.backward(), DTypeError);
  const std::vector<Tensor> others = sevens();
  resume.join();
  CHECK(all_sevens(others));
  model.zero_grad();
  net(x.to(kFloat64)).sum().backward();
  for (const Tensor& p : model.parameters()) CHECK(p.grad().defined());
}

TEST_CASE("a step that fails on one device is no step apart: the next ones are the same everywhere") {
  const DefaultDeviceGuard home(cuda(0));
  for (int n = 1; n <= 8; ++n) {
    INFO(n);
    Line model;
    DataParallel<Line> net(model, {cuda(0), cuda(1)});
    parallel::Synchronous<optim::Adam> optimizer(net, {.lr = 0.1});
    const Tensor x = batch(cuda(0));
    const auto step = [&] {
      optimizer.zero_grad();
      net(x).sum().backward();
      optimizer.step();
    };
    step();
    optimizer.zero_grad();
    net(x).sum().backward();
    simt::fail(simt::Call::Launch, n, kTooManyResources);
    try {
      optimizer.step();
    } catch (const Error&) {  // some launches are not the optimizer's
    }
    simt::clear_failures();
    for (int i = 0; i < 3; ++i) step();
    optimizer.check();
  }
}

TEST_CASE("launches and copies that are refused are errors of that call only") {
  Line model;
  DataParallel<Line> net(model, {cuda(0), cuda(1)});
  const Tensor x = batch(cuda(0));
  check_step(model, net, x);
  for (const simt::Call call : {simt::Call::Launch, simt::Call::Copy}) {
    INFO(simt::name_of(call));
    for (int n = 1; n <= 12; ++n) {
      model.zero_grad();
      simt::fail(call, n, kTooManyResources);
      std::string text;
      try {
        net(x).sum().backward();
        synchronize(cuda(0));
        synchronize(cuda(1));
      } catch (const Error& e) {
        text = e.what();
      }
      simt::clear_failures();
      INFO(n << ": " << text);
      if (!text.empty()) CHECK_THAT(text, ContainsSubstring("cudaErrorLaunchOutOfResources"));
      if (n == 1) CHECK(!text.empty());
      check_step(model, net, x);
    }
  }
}

TEST_CASE("a launch that a replica's GPU refuses is that replica's error") {
  Line model;
  DataParallel<Line> net(model, {cuda(0), cuda(1)});
  const Tensor x = batch(cuda(0));
  check_step(model, net, x);
  simt::fail(simt::Call::Launch, 1, kTooManyResources);
  const std::string text = failure_of<CudaError>(net, x);
  CHECK_THAT(text, StartsWith("replica ") && ContainsSubstring(" of 2 on cuda:"));
  check_step(model, net, x);
}

TEST_CASE("a collective that fails is an error of that call; the next one has a new communicator") {
  Line model;
  DataParallel<Line> net(model, {cuda(0), cuda(1)});
  REQUIRE(std::string(net.transport().name()) == "NCCL");
  const Tensor x = batch(cuda(0));
  check_step(model, net, x);
  for (int n = 1; n <= 3; ++n) {
    {
      const NoGradGuard no_grad;
      model.w.fill_(3.0);  // so that it is sent again
    }
    model.zero_grad();
    simt::fail(simt::Call::Collective, n, kSystemError);
    CHECK_ERROR(net(x).sum().backward(), CudaError, "unhandled system error");
    simt::clear_failures();
    check_step(model, net, x);
  }
}

TEST_CASE("a GPU that died answers every later call with its first error; the other devices go on") {
  const Tensor before = batch(cuda(3));
  const Tensor elsewhere = batch(cuda(2));
  synchronize(cuda(3));
  simt::fail(simt::Call::Launch, 1, kIllegalAddress);
  const Tensor after = before * 2;
  std::string first;
  try {
    synchronize(cuda(3));
    FAIL("no error");
  } catch (const CudaError& e) {
    first = e.what();
    CHECK(e.sticky());
    CHECK(e.code() == kIllegalAddress);
    CHECK_THAT(first, ContainsSubstring("cudaErrorIllegalAddress"));
  }
  CHECK_ERROR(before * 2, CudaError, first);
  CHECK_ERROR(before.to(cpu()), CudaError, first);
  CHECK_ERROR(elsewhere.to(cuda(3)), CudaError, first);
  CHECK_ERROR(zeros({1 << 20}, kFloat64, cuda(3)), CudaError, first);
  CHECK_ERROR(synchronize(cuda(3)), CudaError, first);
  CHECK(has_values(elsewhere * 2, {2, 4, 6, 8}));
  CHECK(has_values(elsewhere.to(cpu(1)) * 2, {2, 4, 6, 8}));

  Line model;
  model.to(cuda(2));
  DataParallel<Line> net(model, {cuda(2), cuda(3)});
  CHECK_ERROR(net(elsewhere), Error, first);
  DataParallel<Line> without(model, {cuda(2), cuda(1)});
  CHECK(has_values(without(elsewhere), kY));
}
