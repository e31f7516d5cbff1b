// The tape at work: long chains, threads, several devices, and what is left afterwards.

#include <pthread.h>

#include <atomic>
#include <mutex>
#include <set>
#include <stdexcept>
#include <thread>

#include "helpers.h"

using namespace tandem;
using namespace tandem::test;

namespace {

/// Runs f on a thread with a small stack, and rethrows what it throws.
void on_small_stack(std::size_t bytes, const std::function<void()>& f) {
  struct Job {
    const std::function<void()>& f;
    std::exception_ptr error;
  } job{f, nullptr};
  pthread_attr_t attributes;
  REQUIRE(pthread_attr_init(&attributes) == 0);
  REQUIRE(pthread_attr_setstacksize(&attributes, bytes) == 0);
  pthread_t thread;
  const auto run = [](void* p) -> void* {
    Job& j = *static_cast<Job*>(p);
    try {
      j.f();
    } catch (...) {
      j.error = std::current_exception();
    }
    return nullptr;
  };
  REQUIRE(pthread_create(&thread, &attributes, run, &job) == 0);
  pthread_join(thread, nullptr);
  pthread_attr_destroy(&attributes);
  if (job.error) std::rethrow_exception(job.error);
}

/// Joins when it goes.
class Threads {
 public:
  explicit Threads(int n, const std::function<void(int)>& f) {
    for (int i = 0; i < n; ++i) threads_.emplace_back(f, i);
  }
  ~Threads() {
    for (std::thread& t : threads_) t.join();
  }
  Threads(const Threads&) = delete;
  Threads& operator=(const Threads&) = delete;

 private:
  std::vector<std::thread> threads_;
};

}  // namespace

TEST_CASE("tape: a million nodes on a small stack", "[tape]") {
  ON_EVERY_DEVICE(on);
  const std::int64_t nodes = live_nodes();
  const std::size_t bytes = memory_stats(on(0)).allocated;
  double gradient = 0;
  std::int64_t longest = 0;
  on_small_stack(256 * 1024, [&] {
    const Tensor x = leaf({1}, {});
    {
      Tensor y = x;
      for (int i = 0; i < 1'000'000; ++i) y = y + 1;
      longest = live_nodes() - nodes;
      y.backward();
    }
    gradient = x.grad().item();
    // And one that nobody runs backward through, with something saved in every node.
    Tensor y = x;
    for (int i = 0; i < 100'000; ++i) y = y * x;
  });
  CHECK(gradient == 1);
  CHECK(longest == 1'000'001);
  CHECK(live_nodes() == nodes);
  CHECK(memory_stats(on(0)).allocated == bytes);
}

TEST_CASE("tape: a deep graph of sums", "[tape]") {
  ON_EVERY_DEVICE(on);
  // pytorch issue 5534.
  const Tensor x = leaf({1}, {});
  Tensor y = x;
  for (int i = 0; i < 80'000; ++i) y = y + y * 1e-6;
  y.backward();
  CHECK(x.grad().item() == Approx(1.083287).margin(1e-6));
}

TEST_CASE("tape: threads add to shared leaves", "[tape]") {
  ON_EVERY_DEVICE(on);
  const std::int64_t nodes = live_nodes();
  constexpr int kThreads = 4;
  constexpr int kRuns = 100;
  {
    const Tensor w = leaf({1, 2, 3});
    {
      const Threads threads(kThreads, [&](int thread) {
        for (int i = 0; i < kRuns; ++i) {
          const Tensor y = w * (thread + 1.0);
          (y + y).sum().backward();
        }
      });
    }
    const double wanted = 2.0 * kRuns * (1 + 2 + 3 + 4);
    CHECK(has_values(w.grad(), {wanted, wanted, wanted}));
  }
  CHECK(live_nodes() == nodes);
}

TEST_CASE("tape: of two threads on one graph, one may be refused; nothing is counted twice", "[tape]") {
  ON_EVERY_DEVICE(on);
  const Tensor w = leaf({1, 2, 3});
  Tensor y = w * 1;
  for (int i = 0; i < 20; ++i) y = y * 1;
  const Tensor loss = y.sum();
  std::atomic<int> done{0};
  {
    const Threads threads(3, [&](int) {
      for (int i = 0; i < 50; ++i) {
        try {
          loss.backward({}, true);
          ++done;
        } catch (const AutogradError&) {
        }
      }
    });
  }
  CHECK(done >= 1);
  CHECK(has_values(w.grad(), {double(done), double(done), double(done)}));
  loss.backward();
  CHECK(has_values(w.grad(), {done + 1.0, done + 1.0, done + 1.0}));
}

namespace {

/// A net that is spread over all four devices: y = sum over devices d of tanh(x_d W_d) on the
/// first. The kind is the default device's.
struct Spread {
  DeviceType type = get_default_device().type;
  std::vector<Tensor> inputs, weights;

  Device place(int i) const { return {type, static_cast<std::int16_t>(i)}; }

  Spread() {
    for (int d = 0; d < 4; ++d) {
      inputs.push_back(sample({6, 5}, d).to(place(d)).requires_grad_());
      weights.push_back(sample({5, 7}, d + 4).to(place(d)).requires_grad_());
    }
  }
  /// Every device sends its part to its neighbour first, so that gradients go back and forth.
  Tensor forward() const {
    Tensor total = zeros({6, 7}, kFloat64);
    for (int d = 0; d < 4; ++d) {
      const Tensor mine = tandem::tanh(inputs[d].matmul(weights[d]));
      const Tensor neighbours = sigmoid(mine.to(place((d + 1) % 4)) * 0.5);
      total = total + neighbours.to(place(0)) * (d + 1.0) + mine.to(place(0));
    }
    return total;
  }
  std::vector<Tensor> gradients() const {
    std::vector<Tensor> all = inputs;
    all.insert(all.end(), weights.begin(), weights.end());
    for (const Tensor& t : all) t.zero_grad();
    const Tensor y = forward();
    (y * y).sum().backward();
    std::vector<Tensor> result;
    for (const Tensor& t : all) result.push_back(t.grad().clone());
    return result;
  }
};

}  // namespace

TEST_CASE("tape: a graph over four devices has the gradients of one device, bit for bit each time", "[tape]") {
  ON_EVERY_DEVICE(on);
  const std::int64_t nodes = live_nodes();
  {
    const Spread net;
    const std::vector<Tensor> first = net.gradients();

    // The same sums on one device alone.
    std::vector<Tensor> x;
    std::vector<Tensor> w;
    Tensor total = zeros({6, 7}, kFloat64);
    for (int d = 0; d < 4; ++d) {
      x.push_back(sample({6, 5}, d).requires_grad_());
      w.push_back(sample({5, 7}, d + 4).requires_grad_());
      const Tensor mine = tandem::tanh(x.back().matmul(w.back()));
      total = total + sigmoid(mine * 0.5) * (d + 1.0) + mine;
    }
    (total * total).sum().backward();
    for (std::size_t d = 0; d < 4; ++d) {
      CHECK(first[d].device() == on(static_cast<int>(d)));
      CHECK(close(first[d], x[d].grad(), 1e-12, 1e-12));
      CHECK(close(first[4 + d], w[d].grad(), 1e-12, 1e-12));
    }
    for (int run = 0; run < 30; ++run) {
      const std::vector<Tensor> again = net.gradients();
      for (std::size_t i = 0; i < first.size(); ++i) CHECK(same_bits(first[i], again[i]));
    }
  }
  CHECK(live_nodes() == nodes);
}

TEST_CASE("tape: each device's nodes run on its worker, those of a single device in the caller", "[tape]") {
  ON_EVERY_DEVICE(on);
  std::mutex mutex;
  std::set<std::thread::id> seen;
  const auto watch = [&](const Tensor& t) {
    t.register_hook([&](const Tensor&) {
      const std::scoped_lock lock(mutex);
      seen.insert(std::this_thread::get_id());
      return Tensor();
    });
  };
  const Tensor alone = leaf({1}, {}, on(2));
  const Tensor y = alone * 2;
  watch(y);
  y.backward();
  CHECK(seen == std::set{std::this_thread::get_id()});

  seen.clear();
  Tensor total = zeros({}, kFloat64);
  for (int d = 0; d < 4; ++d) {
    const Tensor part = leaf({1}, {}, on(d)) * 2;
    watch(part);
    total = total + part.to(on(0));
  }
  total.backward();
  CHECK(seen.size() == 4);
  CHECK_FALSE(seen.contains(std::this_thread::get_id()));
}

TEST_CASE("tape: an error on one device reaches the caller, and the devices work on", "[tape]") {
  ON_EVERY_DEVICE(on);
  const std::int64_t nodes = live_nodes();
  {
    const Spread net;
    const std::vector<Tensor> wanted = net.gradients();
    for (int d = 0; d < 4; ++d) {
      const Tensor y = net.forward();
      const HookHandle handle =
          net.weights[d].register_hook([](const Tensor&) -> Tensor { throw std::runtime_error("on a device"); });
      CHECK_THROWS_WITH(y.sum().backward(), "on a device");
      HookHandle(handle).remove();
      const std::vector<Tensor> again = net.gradients();
      for (std::size_t i = 0; i < wanted.size(); ++i) CHECK(same_bits(wanted[i], again[i]));
    }
  }
  CHECK(live_nodes() == nodes);
}

TEST_CASE("tape: backward inside backward on other devices does not deadlock", "[tape]") {
  ON_EVERY_DEVICE(on);
  const Spread inner;
  const std::vector<Tensor> wanted = inner.gradients();
  const Spread outer;
  int compared = 0;
  for (int d = 0; d < 4; ++d) {
    outer.weights[d].register_hook([&, d](const Tensor&) {
      if (d != 1) return Tensor();
      const EnableGradGuard enable;
      const std::vector<Tensor> again = inner.gradients();
      for (std::size_t i = 0; i < wanted.size(); ++i) compared += same_bits(wanted[i], again[i]);
      return Tensor();
    });
  }
  outer.gradients();
  CHECK(compared == 8);
}

TEST_CASE("tape: two threads on graphs over the same devices", "[tape]") {
  ON_EVERY_DEVICE(on);
  const Spread one;
  const Spread two;
  const std::vector<Tensor> wanted = one.gradients();
  std::atomic<int> wrong{0};
  {
    const Threads threads(2, [&](int thread) {
      const DefaultDeviceGuard device(on(0));
      for (int run = 0; run < 20; ++run) {
        const std::vector<Tensor> again = (thread == 0 ? one : two).gradients();
        for (std::size_t i = 0; i < wanted.size(); ++i) wrong += !same_bits(wanted[i], again[i]);
      }
    });
  }
  CHECK(wrong == 0);
}

TEST_CASE("tape: an observer sees the time of each device", "[tape]") {
  ON_EVERY_DEVICE(on);
  struct Spans final : Observer {
    std::mutex mutex;
    std::set<Device> devices;
    bool forward_in_time = true;
    void span(const char* name, Device device, const TimeMark& begin, const TimeMark& end, std::int64_t) override {
      const std::scoped_lock lock(mutex);
      if (std::string(name) == "backward") devices.insert(device);
      forward_in_time = forward_in_time && begin.time_ns() <= end.time_ns();
    }
  } spans;
  const Spread net;
  const ContextGuard guard(context());
  context().observer = &spans;
  net.gradients();
  CHECK(spans.devices == std::set{on(0), on(1), on(2), on(3)});
  CHECK(spans.forward_in_time);
}

TEST_CASE("tape: ten thousand steps leave nothing behind", "[tape]") {
  ON_EVERY_DEVICE(on);
  const std::int64_t nodes = live_nodes();
  const std::size_t bytes = memory_stats(on(0)).allocated;
  {
    const Tensor x = sample({8, 4}).to(kFloat32) / 4;
    const Tensor y = (sample({8, 1}, 3).to(kFloat32)) / 4;
    std::vector<Tensor> w = {(sample({8, 4}, 1).to(kFloat32) / 8), zeros({8}), (sample({1, 8}, 2).to(kFloat32) / 8)};
    for (Tensor& t : w) t.requires_grad_();
    const auto step = [&] {
      const Tensor loss = mse_loss(linear(tandem::tanh(linear(x, w[0], w[1])), w[2]), y);
      loss.backward();
      const NoGradGuard no_grad;
      for (Tensor& t : w) {
        t.sub_(t.grad() * 0.05);
        t.zero_grad();
      }
      return loss.item();
    };
    const double first = step();
    const std::int64_t nodes_between = live_nodes();
    const MemoryStats between = memory_stats(on(0));
    double last = 0;
    for (int i = 0; i < 10'000; ++i) last = step();
    CHECK(live_nodes() == nodes_between);
    CHECK(memory_stats(on(0)).allocated == between.allocated);
    CHECK(memory_stats(on(0)).reserved == between.reserved);
    CHECK(memory_stats(on(0)).peak == between.peak);
    // As PyTorch 1.13.
    CHECK(first == Approx(0.3199290633).epsilon(1e-5));
    CHECK(last == Approx(0.2833714187).epsilon(1e-4));
  }
  CHECK(live_nodes() == nodes);
  CHECK(memory_stats(on(0)).allocated == bytes);
}
