// One suite for every transport: what goes in comes out, in every dtype, from any strides, by any of the devices.

#include "../../engine/ops_internal.h"
#include "../../parallel/transport.h"
#include "helpers.h"

using namespace tandem;
using namespace tandem::test;
using parallel::make_transport;
using parallel::Transport;
using parallel::TransportKind;
using parallel::TransportPtr;

namespace {

/// All that there are for these devices.
std::vector<TransportPtr> transports(const std::vector<Device>& devices) {
  std::vector<TransportPtr> all{make_transport(devices, TransportKind::Copies),
                                make_transport(devices, TransportKind::Host)};
  try {
    all.push_back(make_transport(devices, TransportKind::NCCL));
  } catch (const DeviceError&) {
    // No NCCL, or no GPUs of their own.
  }
  return all;
}

constexpr DType kSummable[] = {kUInt8, kInt32, kInt64, kFloat32, kFloat64};

/// Values from 0 to 10 that every dtype can hold.
Tensor pattern(const Shape& shape, int variant, DType dtype, Device device) {
  return (integers(shape, variant) + 5).to(dtype).to(device);
}

}  // namespace

TEST_CASE("transports: GPUs of their own have NCCL, and it is what they get", "[transport]") {
  ON_EVERY_DEVICE(on);
  const auto all = transports(on.first(2));
  CHECK(all[0]->name() == std::string("copies"));
  CHECK(all[1]->name() == std::string("host"));
  CHECK(make_transport(on.first(2))->name() == std::string(all.size() == 3 ? "NCCL" : "copies"));
  if (on.are_cpus()) {
    check_error<DeviceError>([&] { make_transport(on.first(2), TransportKind::NCCL); }, {"NCCL", "cpu:0,cpu:1"});
  }
  CHECK_THROWS_AS(make_transport(on.first(1), TransportKind::NCCL), DeviceError);
}

TEST_CASE("transports: broadcast", "[transport]") {
  ON_EVERY_DEVICE(on);
  for (const TransportPtr& transport : transports(on.first(4))) {
    for (const DType dtype : {kBool, kUInt8, kInt32, kInt64, kFloat32, kFloat64}) {
      for (const std::int64_t n : {0, 1, 1000}) {
        for (const std::vector<int>& targets : {std::vector{1, 2, 3}, {3}, {2, 1}, {}}) {
          INFO(transport->name() << ", " << name_of(dtype) << ", " << n << " elements to " << targets.size());
          const Tensor from = pattern({n}, 1, dtype, on(0));
          std::vector<Tensor> to;
          for (const int i : targets) to.push_back(empty({n}, dtype, on(i)));
          transport->broadcast(from, to);
          for (const Tensor& t : to) CHECK(values(t) == values(from));
        }
      }
    }
  }
}

TEST_CASE("transports: sums of one part per device, and of fewer", "[transport]") {
  ON_EVERY_DEVICE(on);
  for (const TransportPtr& transport : transports(on.first(4))) {
    for (const DType dtype : kSummable) {
      for (const std::vector<int>& from : {std::vector{0, 1, 2, 3}, {0}, {2}, {1, 3}, {3, 0}}) {
        INFO(transport->name() << ", " << name_of(dtype) << ", " << from.size() << " parts");
        std::vector<Transport::Reduction> reductions;
        std::vector<std::vector<double>> wanted;
        for (const std::int64_t n : {1, 0, 700}) {
          Tensor total = zeros({n}, kFloat64);
          std::vector<Tensor> parts;
          for (const int i : from) {
            parts.push_back(pattern({n}, i, dtype, on(i)));
            total = total + pattern({n}, i, kFloat64, on(0));
          }
          reductions.push_back({empty({n}, dtype, on(0)), parts});
          wanted.push_back(values(total));
        }
        transport->reduce(reductions);
        for (std::size_t r = 0; r < wanted.size(); ++r) CHECK(values(reductions[r].sum) == wanted[r]);
      }
    }
  }
}

TEST_CASE("transports: sums of strided parts", "[transport]") {
  ON_EVERY_DEVICE(on);
  for (const TransportPtr& transport : transports(on.first(3))) {
    INFO(transport->name());
    std::vector<Tensor> parts;
    Tensor wanted = zeros({4, 3}, kFloat64);
    for (int i = 0; i < 3; ++i) {
      parts.push_back(pattern({3, 4}, i, kFloat64, on(i)).t());
      wanted = wanted + parts.back().to(on(0));
    }
    const std::vector<Transport::Reduction> reductions{{empty({4, 3}, kFloat64, on(0)), parts}};
    transport->reduce(reductions);
    CHECK(equal(reductions[0].sum, wanted));
  }
}

TEST_CASE("transports: sums on every device have the same bits", "[transport]") {
  ON_EVERY_DEVICE(on);
  for (const TransportPtr& transport : transports(on.first(4))) {
    for (const int missing : {-1, 0, 2}) {
      INFO(transport->name() << ", without " << missing);
      std::vector<std::vector<Tensor>> buffers(2);
      for (int i = 0; i < 4; ++i) {
        buffers[0].push_back(zeros({40}, kFloat32, on(i)));
        buffers[1].push_back(zeros({16}, kInt64, on(i)));
      }
      const auto place = [&](std::size_t b, std::int64_t begin, std::int64_t n) {
        return buffers[b][0].narrow(0, begin, n);
      };
      std::vector<Transport::Reduction> reductions{{place(0, 0, 7), {}}, {place(1, 0, 3), {}}, {place(0, 16, 24), {}}};
      manual_seed(5);
      for (auto& [sum, parts] : reductions) {
        for (int i = 0; i < 4; ++i) {
          if (i == missing) continue;
          parts.push_back(sum.dtype() == kInt64 ? pattern(sum.sizes(), i, kInt64, on(i))
                                                : randn(sum.sizes(), kFloat32, on(i)));
        }
      }
      transport->all_reduce(reductions, buffers);
      for (const auto& [sum, parts] : reductions) {
        Tensor wanted = parts[0].to(on(0)).clone();
        for (std::size_t i = 1; i < parts.size(); ++i) wanted = wanted + parts[i].to(on(0));
        if (transport->name() == std::string("NCCL")) {
          CHECK(allclose(sum.to(kFloat64), wanted.to(kFloat64), 1e-5, 1e-5));
        } else {
          CHECK(values(sum) == values(wanted));  // in the order of devices, to the last bit
        }
      }
      for (int i = 1; i < 4; ++i) {
        for (const auto& b : buffers) CHECK(values(b[static_cast<std::size_t>(i)]) == values(b[0]));
      }
    }
  }
}
