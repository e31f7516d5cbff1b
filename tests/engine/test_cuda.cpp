// What CUDA devices do beyond what every device does: queued work, index errors that come later, random numbers that
// are the CPU's, memory that runs out. Nothing to do where there is no CUDA device.

#include <thread>

#include "../../engine/random.h"
#include "../../engine/runtime.h"
#include "helpers.h"

using namespace tandem;
using namespace tandem::test;

namespace {

bool no_cuda() {
  if (device_count(DeviceType::CUDA) > 0) return false;
  WARN("skipped: there is no CUDA device");
  return true;
}

}  // namespace

TEST_CASE("cuda: names and counts") {
  const int count = device_count(DeviceType::CUDA);
  CHECK(count <= 64);
  CHECK_ERROR(parse_device("cuda:64"), DeviceError, "there is no cuda:64: ");
  CHECK_ERROR(set_default_device(cuda(count)), DeviceError, "there is no cuda:");
  CHECK_ERROR(set_devices_per_gpu(0), ValueError, "wanted 1 to 64, got 0");
  if (no_cuda()) return;
  CHECK(parse_device("cuda") == cuda(0));
  const Tensor x = zeros({1}, kFloat32, cuda(0));
  CHECK_ERROR(set_devices_per_gpu(2), DeviceError, "cuda:0 is in use");
  CHECK_ERROR(zeros({1}, kFloat32, cuda(count)), DeviceError, "the cuda devices are cuda:0 to cuda:");
}

TEST_CASE("cuda: values survive every way between devices") {
  if (no_cuda()) return;
  std::vector<Device> places = {cpu(0), cpu(1), cuda(0)};
  if (device_count(DeviceType::CUDA) > 1) places.push_back(cuda(1));
  const Tensor whole = sample({37, 5, 11});
  for (Device from : places) {
    for (Device to : places) {
      INFO(str(from) << " to " << str(to));
      const Tensor there = whole.to(from).to(to);
      CHECK(there.device() == to);
      CHECK(same_bits(there, whole));
      // Strided at the source, strided at the target, a broadcast, and another dtype.
      CHECK(same_bits(whole.to(from).transpose(0, 2).to(to), whole.transpose(0, 2)));
      Tensor frame = zeros({11, 5, 40}, kFloat64, to);
      frame.narrow(2, 3, 37).transpose(0, 2).copy_(whole.to(from));
      CHECK(same_bits(frame.narrow(2, 3, 37).transpose(0, 2), whole));
      CHECK(abs(frame.narrow(2, 0, 3)).sum().item() == 0);
      Tensor row = zeros({4, 11}, kFloat32, to);
      row.copy_(whole.to(from).select(0, 3).select(0, 2));
      CHECK(same_bits(row.to(cpu()).select(0, 3), whole.select(0, 3).select(0, 2).to(kFloat32)));
    }
  }
  // Longer than the pinned memory through which copies to and from the host go.
  const Tensor large = arange(3'000'001).to(kFloat64);
  CHECK(same_bits(large.to(cuda(0)), large));
}

TEST_CASE("cuda: a tensor may change or go as soon as its copy is asked for") {
  if (no_cuda()) return;
  for (int run = 0; run < 20; ++run) {
    Tensor x = full({100'000}, run, kFloat32);
    const Tensor there = x.to(cuda(0));
    x.fill_(-1);
    Tensor on_gpu = there * 2;
    const Device other = device_count(DeviceType::CUDA) > 1 ? cuda(1) : cpu(1);
    const Tensor copy = on_gpu.to(other);
    on_gpu.fill_(-1);
    on_gpu = Tensor();
    const Tensor reused = full({100'000}, -2, kFloat32, cuda(0));
    CHECK(equal(copy.to(cpu()), full({100'000}, 2.0 * run)));
    CHECK(reused.to(cpu()).max().item() == -2);
  }
}

TEST_CASE("cuda: random numbers are the CPU's") {
  if (no_cuda()) return;
  for (int i = 0; i < std::min(2, device_count(DeviceType::CUDA)); ++i) {
    std::vector<Tensor> draws[2];
    int k = 0;
    for (Device device : {cpu(i), cuda(i)}) {
      manual_seed(11);
      std::vector<Tensor>& out = draws[k++];
      for (DType dtype : {kFloat32, kFloat64}) {
        out.push_back(rand({1001}, dtype, device));
        out.push_back(randn({1001}, dtype, device));
        out.push_back(dropout(ones({1001}, dtype, device), 0.3));
      }
      out.push_back(randint(-5, 1000, {777}, kInt64, device));
      CHECK(generator_state(device).offset > 0);
    }
    for (std::size_t j = 0; j < draws[0].size(); ++j) {
      INFO("draw " << j);
      CHECK(same_bits(draws[0][j], draws[1][j]));
    }
  }
}

TEST_CASE("cuda: an index out of range is an error where one waits, once, and harms nothing") {
  if (no_cuda()) return;
  const Device device = cuda(0);
  const Tensor table = arange(12).reshape({4, 3}).to(kFloat32).to(device);
  const auto lookup = [&] { return index_select(table, 0, tensor({1, 4, 2}, kInt64, device)); };
  const std::string text = "index_select: index 4 at position 1 is out of range: wanted 0 to 3";
  const MemoryStats before = memory_stats(device);
  {
    const Tensor rows = lookup();
    CHECK_ERROR(synchronize(device), IndexError, text);
    synchronize(device);
    CHECK(has_values(rows, {3, 4, 5, 0, 0, 0, 6, 7, 8}));
  }
  CHECK_ERROR(lookup().sum().item(), IndexError, text);
  CHECK_ERROR(lookup().to_vector(), IndexError, text);
  CHECK_ERROR(lookup().to(cpu()), IndexError, text);
  CHECK(memory_stats(device).allocated == before.allocated);
  CHECK(has_values(table.sum(), {66}));
}

TEST_CASE("cuda: memory that runs out is an error that names all sizes; the cache is released first") {
  if (no_cuda()) return;
  const Device device = cuda(0);
  const Tensor keep = sample({3}).to(device);
  { const Tensor cached = empty({1 << 20}, kFloat32, device); }
  const MemoryStats before = memory_stats(device);
  constexpr std::int64_t kHuge = 1'000'000'000'000'000;
  try {
    zeros({kHuge}, kUInt8, device);
    FAIL("no exception");
  } catch (const MemoryError& e) {
    CHECK_THAT(e.what(), ContainsSubstring("cuda:0: out of memory: requested 1000000000000000 bytes"));
    CHECK(e.requested() == kHuge);
    CHECK(e.cached() == before.reserved - before.allocated);
    CHECK(e.cached() >= (4 << 20));
  }
  CHECK(memory_stats(device).allocated == before.allocated);
  CHECK(memory_stats(device).reserved == before.allocated);
  CHECK(has_values(keep * 2, (sample({3}) * 2).to_vector()));
}

TEST_CASE("cuda: poisoned memory is NaN when it is fresh, and when it is used again") {
  if (no_cuda()) return;
  set_poison_memory(true);
  for (int i = 0; i < 2; ++i) {
    const Tensor x = empty({100}, kFloat32, cuda(0));
    CHECK(isnan(x).to(kInt64).sum().item<int>() == 100);
    Tensor(x).fill_(1);
  }
  set_poison_memory(false);
}

TEST_CASE("cuda: threads may share a device") {
  if (no_cuda()) return;
  std::vector<double> sums(4);
  {
    std::vector<std::thread> threads;
    for (std::size_t i = 0; i < sums.size(); ++i) {
      threads.emplace_back([&sums, i] {
        Tensor total = zeros({50}, kFloat64, cuda(0));
        for (int k = 0; k < 50; ++k)
          total = total + softmax(full({50}, k, kFloat64, cuda(0)), 0) * (1.0 + static_cast<double>(i));
        sums[i] = total.sum().item();
      });
    }
    for (std::thread& t : threads) t.join();
  }
  for (std::size_t i = 0; i < sums.size(); ++i) CHECK(sums[i] == Approx(50.0 * (1.0 + static_cast<double>(i))));
}
