// Devices, their memory and their random numbers.

#include <cstdlib>
#include <thread>

#include "../../engine/random.h"
#include "helpers.h"

using namespace tandem;
using namespace tandem::test;

// Sanitizers end the program when malloc fails, unless told that failure is expected.
extern "C" const char* __asan_default_options() { return "allocator_may_return_null=1"; }
extern "C" const char* __tsan_default_options() { return "allocator_may_return_null=1"; }

TEST_CASE("device: names") {
  CHECK(parse_device("cpu") == cpu(0));
  CHECK(parse_device("cpu:1") == cpu(1));
  CHECK(str(cpu(3)) == "cpu:3");
  CHECK(str(cuda(0)) == "cuda:0");
  CHECK(parse_devices("cpu:0,cpu:2") == std::vector{cpu(0), cpu(2)});
  CHECK(str(std::vector{cpu(0), cpu(2)}) == "cpu:0,cpu:2");
  for (const char* text : {"", "gpu", "CPU", "cpu:", "cpu:x", "cpu:-1", "cpu:+1", "cpu: 1", "cpu:1x", "cpu:1:2", ":1",
                           "cpu:99999999999"}) {
    CHECK_ERROR(parse_device(text), ValueError,
                "'" + std::string(text) + "' is not a device: wanted cpu, cpu:N or cuda:N");
  }
  for (const char* text : {"", "cpu:0,", ",cpu:0", "cpu:0;cpu:1"})
    CHECK_ERROR(parse_devices(text), ValueError, "wanted");
  CHECK_ERROR(parse_device("cpu:64"), DeviceError, "cpu:0 to cpu:");
  CHECK_ERROR(parse_device("cpu:65536"), DeviceError, "there is no cpu:65536");
  CHECK_ERROR(zeros({2}, kFloat32, cpu(64)), DeviceError, "cpu:64");
  CHECK_ERROR(zeros({2}, kFloat32, cpu(-1)), DeviceError, "cpu:-1");
}

TEST_CASE("device: counts") {
  const int count = device_count(DeviceType::CPU);
  CHECK(count >= 4);
  CHECK(count <= 64);
  CHECK_ERROR(set_cpu_device_count(65), ValueError, "to 64, got 65");
  CHECK_ERROR(set_cpu_device_count(0), ValueError, "got 0");
  set_cpu_device_count(64);
  CHECK(parse_device("cpu:63") == cpu(63));
  manual_seed(0);  // makes no device one in use
  set_cpu_device_count(count);
  CHECK(device_count(DeviceType::CPU) == count);
  zeros({1}, kFloat32, cpu(3));
  CHECK_ERROR(set_cpu_device_count(3), ValueError, "wanted 4");
  CHECK(device_count(DeviceType::CPU) == count);

  CHECK_ERROR(set_num_threads(0), ValueError, "at least 1");
  const ContextGuard guard(context());
  set_num_threads(3);
  CHECK(num_threads() == 3);
  std::thread([] {
    CHECK(num_threads() == static_cast<int>(std::max(1U, std::thread::hardware_concurrency())));
  }).join();
}

TEST_CASE("device: tensors are counted on their device alone, and freed blocks are used again") {
  for_each_device([](Device device) {
    INFO(str(device));
    const MemoryStats before = memory_stats(device);
    const MemoryStats elsewhere = memory_stats(cpu(2));
    reset_peak_memory(device);
    void* address = nullptr;
    {
      const Tensor a = empty({1000}, kFloat32, device);
      address = a.data_ptr();
      CHECK(reinterpret_cast<std::uintptr_t>(address) % 64 == 0);
      const MemoryStats during = memory_stats(device);
      CHECK(during.allocated >= before.allocated + 4000);
      CHECK(during.allocated <= before.allocated + 4000 * 9 / 8 + 64);
      CHECK(during.allocations == before.allocations + 1);
      CHECK(during.reserved >= during.allocated);
      const Tensor view = a.slice(0, 1, {}, 2);
      const Tensor none = empty({0, 5}, kFloat32, device);
      CHECK(memory_stats(device).allocations == during.allocations);
    }
    const MemoryStats after = memory_stats(device);
    CHECK(after.allocated == before.allocated);
    CHECK(after.peak >= before.allocated + 4000);
    reset_peak_memory(device);
    CHECK(memory_stats(device).peak == before.allocated);
    CHECK(memory_stats(cpu(2)).allocated == elsewhere.allocated);

    CHECK(empty({1000}, kFloat32, device).data_ptr() == address);
    CHECK(memory_stats(device).reserved == after.reserved);
    empty_cache(device);
    CHECK(memory_stats(device).reserved == memory_stats(device).allocated);
  });
}

TEST_CASE("device: a request that cannot be met changes nothing") {
  const Tensor keep = sample({3});
  { const Tensor cached = empty({1 << 20}); }
  const MemoryStats before = memory_stats(cpu());
  const std::int64_t nodes = live_nodes();
  constexpr std::int64_t kHuge = 1'000'000'000'000'000;
  try {
    zeros({kHuge}, kUInt8);
    FAIL("no exception");
  } catch (const MemoryError& e) {
    CHECK_THAT(e.what(), ContainsSubstring("cpu:0: out of memory: requested 1000000000000000 bytes"));
    CHECK(e.requested() == kHuge);
    CHECK(e.cached() == before.reserved - before.allocated);
    CHECK(e.cached() >= (4 << 20));
  }
  CHECK(memory_stats(cpu()).allocated == before.allocated);
  CHECK(memory_stats(cpu()).reserved == before.allocated);
  CHECK(memory_stats(cpu()).peak == before.peak);

  // Inside an operation, forward and backward.
  const Tensor x = leaf({1, 2, 3});
  CHECK_THROWS_AS(x.unsqueeze(1).expand({3, kHuge / 24}) * 2, MemoryError);
  Tensor y = x.detach() * 1;
  record("greedy", y, {x}, [](GradContext& c) { c.set(0, c.grad() + empty({kHuge / 8}, kFloat64).sum()); });
  CHECK_THROWS_AS(y.sum().backward(), MemoryError);
  CHECK_FALSE(x.grad().defined());
  (x * 2).sum().backward();
  CHECK(has_values(x.grad(), {2, 2, 2}));
  CHECK(same_bits(keep, sample({3})));
  y = Tensor();
  CHECK(live_nodes() == nodes + 1);  // x's accumulator
}

TEST_CASE("device: poison shows memory that was not written") {
  set_poison_memory(true);
  { const Tensor dirty = zeros({100}); }
  const Tensor fresh = empty({100});
  const Tensor whole = empty({3}, kInt32);
  set_poison_memory(false);
  CHECK(isnan(fresh).to(kInt64).sum().item<int>() == 100);
  CHECK(has_values(whole, {-1, -1, -1}));
}

TEST_CASE("device: no op reads memory that it has not written") {
  // With poison whatever is read too early becomes NaN, or an index out of range.
  for (const OpRecord& record : op_records()) {
    INFO(record.name);
    for (const OpSample& sample : record.samples()) {
      const Evaluation plain = evaluate(sample, leaves(sample.inputs));
      set_poison_memory(true);
      const Evaluation poisoned = evaluate(sample, leaves(sample.inputs));
      set_poison_memory(false);
      for (std::size_t i = 0; i < plain.outputs.size(); ++i) CHECK(same_bits(plain.outputs[i], poisoned.outputs[i]));
      for (std::size_t i = 0; i < plain.gradients.size(); ++i) {
        CHECK(same_bits(plain.gradients[i], poisoned.gradients[i]));
      }
    }
  }
}

TEST_CASE("random: seeds, states and devices") {
  manual_seed(42);
  const Tensor a = rand({100});
  const Tensor b = randn({100});
  CHECK_FALSE(equal(a, b));
  manual_seed(42);
  CHECK(same_bits(rand({100}), a));
  CHECK(same_bits(randn({100}), b));
  manual_seed(43);
  CHECK_FALSE(equal(rand({100}), a));

  manual_seed(42);
  const Tensor other = rand({100}, kFloat32, cpu(1));
  CHECK_FALSE(equal(other.to(cpu()), a));
  CHECK(same_bits(rand({100}), a));  // cpu:1's draw did not move cpu:0
  manual_seed(42);
  CHECK(same_bits(rand({100}, kFloat32, cpu(1)), other));

  const GeneratorState state = generator_state(cpu());
  const Tensor c = randint(0, 1000, {50});
  CHECK_FALSE(generator_state(cpu()) == state);
  CHECK_FALSE(equal(randint(0, 1000, {50}), c));
  set_generator_state(cpu(), state);
  CHECK(same_bits(randint(0, 1000, {50}), c));

  // Two draws of 4 are not one draw repeated, and threads do not matter.
  manual_seed(1);
  const ContextGuard guard(context());
  set_num_threads(1);
  const Tensor one = randn({100'000});
  manual_seed(1);
  set_num_threads(4);
  CHECK(same_bits(randn({100'000}), one));
  manual_seed(0);
}

TEST_CASE("random: distributions") {
  manual_seed(3);
  for (const DType dtype : {kFloat32, kFloat64}) {
    const Tensor u = rand({200'000}, dtype);
    CHECK(u.min().item() >= 0);
    CHECK(u.max().item() < 1);
    CHECK(u.mean().item() == Approx(0.5).margin(0.004));
    CHECK(var(u).item() == Approx(1.0 / 12).epsilon(0.01));
    const Tensor n = randn({200'000}, dtype);
    CHECK(n.mean().item() == Approx(0).margin(0.01));
    CHECK(var(n).item() == Approx(1).epsilon(0.02));
    CHECK(abs(n).max().item() < 7);
    CHECK(le(n, 1).to(kFloat64).mean().item() == Approx(0.8413).margin(0.005));
    // Neighbours are independent.
    CHECK((n.slice(0, 1, {}) * n.slice(0, {}, -1)).mean().item() == Approx(0).margin(0.01));
  }
  Tensor t = zeros({1000, 2}).t();
  t.uniform_(-3, -2);
  CHECK(t.min().item() >= -3);
  CHECK(t.max().item() < -2);
  t.normal_(10, 0.5);
  CHECK(t.mean().item() == Approx(10).margin(0.1));
  const Tensor i = randint(-2, 3, {10'000});
  for (int v = -2; v < 3; ++v) CHECK(eq(i, v).sum().item() == Approx(2000).margin(250));
  CHECK(i.min().item() == -2);
  CHECK(i.max().item() == 2);
  manual_seed(0);
}

namespace {

/// One after the other, for a batch x (samples, elements) that gives shape, dtype and device.
std::vector<Tensor> draw_everything(const Tensor& x) {
  const Tensor transposed = empty({x.size(1), x.size(0)}, x.dtype(), x.device()).t();
  return {rand(x.sizes(), x.dtype(), x.device()),
          randn(x.sizes(), x.dtype(), x.device()),
          randint(0, 1000, x.sizes(), kInt64, x.device()),
          randint(0, 1000, x.sizes(), x.dtype(), x.device()),
          dropout(x, 0.4),
          Tensor(transposed).normal_(),
          rand(x.sizes(), x.dtype(), x.device())};
}

}  // namespace

TEST_CASE("random: the parts of a batch draw what one device draws for all of it") {
  ON_EVERY_DEVICE(on);
  const std::vector<std::vector<std::int64_t>> splits{{10}, {3, 3, 3, 1}, {5, 5}, {1, 9}};
  const Device home = on(1);
  for (const DType dtype : {kFloat32, kFloat64}) {
    for (const std::int64_t elements : {1, 3, 4}) {
      manual_seed(12);
      rand({7}, kFloat32, home);  // so that the batch does not begin at 0
      const GeneratorState begin = generator_state(home);
      const Tensor batch = ones({10, elements}, dtype, home);
      const std::vector<Tensor> wanted = draw_everything(batch);
      const GeneratorState end = generator_state(home);

      for (const auto& split : splits) {
        CAPTURE(name_of(dtype), elements, split);
        std::vector<std::vector<Tensor>> parts(wanted.size());
        std::int64_t first = 0;
        for (std::size_t i = 0; i < split.size(); ++i) {
          const Device device = on(static_cast<int>(i));
          const GeneratorState left_alone = generator_state(device);
          SampleRange samples{home, begin, first, split[i], 10};
          const ContextGuard guard(context());
          context().samples = &samples;
          const auto drawn = draw_everything(batch.slice(0, first, first + split[i]).to(device));
          for (std::size_t k = 0; k < drawn.size(); ++k) parts[k].push_back(drawn[k].to(home));
          CHECK(samples.generator == end);
          CHECK(generator_state(device) == left_alone);
          first += split[i];
        }
        for (std::size_t k = 0; k < wanted.size(); ++k) {
          CAPTURE(k);
          CHECK(same_bits(cat(parts[k], 0), wanted[k]));
        }
      }
    }
  }
  manual_seed(0);
}

TEST_CASE("random: every sample of a part of a batch has as many elements") {
  ON_EVERY_DEVICE(on);
  SampleRange samples{on(0), {3, 5}, 4, 3, 10};
  SampleRange none{on(0), {3, 5}, 10, 0, 10};
  const GeneratorState begin = samples.generator;
  const ContextGuard guard(context());
  context().samples = &samples;
  CHECK_ERROR(
      rand({7}), ValueError,
      "random numbers on " + str(on(0)) + ": got 7 elements for 3 of a batch's 10 samples, wanted as many for each");
  CHECK_ERROR(dropout(ones({2, 2}), 0.5), ValueError, "got 4 elements");
  CHECK_ERROR(randint(0, 5, {1}), ValueError, "got 1 elements");
  CHECK(rand({3, 0}).numel() == 0);
  CHECK(samples.generator == begin);
  context().samples = &none;
  CHECK_ERROR(randn({2}), ValueError, "got 2 elements for 0 of a batch's 10 samples");
  CHECK(dropout(ones({0, 5}), 0.5).sizes() == Shape{0, 5});
  CHECK(none.generator == begin);
}

TEST_CASE("random: dropout keeps the mask for backward") {
  manual_seed(9);
  const Tensor x = ones({3, 1000}, kFloat64).requires_grad_();
  const Tensor y = dropout(x, 0.25);
  const Tensor kept = ne(y, 0).to(kFloat64);
  CHECK(kept.mean().item() == Approx(0.75).margin(0.03));
  CHECK(close(y, kept / 0.75, 1e-15, 0));
  y.sum().backward();
  // tiny-dnn issue 723: in every row, not only in the first.
  CHECK(same_bits(x.grad(), y));
  CHECK(dropout(x, 0.5, false).is_same(x));
  CHECK(dropout(x, 0).is_same(x));
  CHECK(has_values(dropout(tensor({1.0, 2.0}), 1), {0, 0}));
  manual_seed(0);
}
