#include "transport.h"

#include <algorithm>

#include "../engine/ops_internal.h"
#include "links.h"

namespace tandem::parallel {
namespace {

using kernels::cuda::Collectives;

/// Copies, straight or by way of the host.
class CopyTransport final : public Transport {
 public:
  explicit CopyTransport(bool by_host, std::string why = {}) : by_host_(by_host), why_(std::move(why)) {}

  const char* name() const override { return by_host_ ? "host" : "copies"; }
  std::string description() const override { return why_.empty() ? name() : name() + (", since " + why_); }

  void broadcast(const Tensor& from, std::span<const Tensor> to) const override {
    const Tensor source = by_host_ && from.device().type != DeviceType::CPU ? moved(from, cpu()) : from;
    for (const Tensor& t : to) copy_values(t, source);
  }

  Started start_reduce(std::span<const Reduction> reductions, bool) const override {
    const NoGradGuard no_grad;
    for (const Reduction& r : reductions) {
      const Device home = r.sum.device();
      if (r.parts.size() == 1) copy_values(r.sum, r.parts[0]);
      for (std::size_t i = 1; i < r.parts.size(); ++i) {
        const Tensor first = i == 1 ? reachable(r.parts[0], home) : r.sum;
        const Tensor next = reachable(r.parts[i], home);
        kernels::Stream stream = stream_for(home);
        backend(home).binary(stream, kernels::BinaryOp::Add, raw(r.sum), raw(first), raw(next));
      }
    }
    return {};
  }

 private:
  /// t, if kernels of `device` can read it where it is, else a copy there.
  Tensor reachable(const Tensor& t, Device device) const {
    const bool both_cpu = t.device().type == DeviceType::CPU && device.type == DeviceType::CPU;
    if (both_cpu || t.device() == device) return t;
    return moved(by_host_ ? moved(t, cpu()) : t, device);
  }
  static Tensor moved(const Tensor& t, Device device) {
    const NoGradGuard no_grad;
    return to(t, device);
  }

  bool by_host_;
  std::string why_;
};

std::byte* bytes(const Tensor& t) { return static_cast<std::byte*>(t.data_ptr()); }

class NcclTransport final : public Transport {
 public:
  NcclTransport(std::vector<Device> devices, std::unique_ptr<Collectives> collectives)
      : devices_(std::move(devices)), collectives_(std::move(collectives)) {}

  const char* name() const override { return "NCCL"; }

  void broadcast(const Tensor& from, std::span<const Tensor> to) const override {
    std::vector<Tensor> all{from};
    all.insert(all.end(), to.begin(), to.end());
    if (!is_whole(all)) return copy_transport()->broadcast(from, to);
    std::vector<std::byte*> data;
    for (const Tensor& t : all) data.push_back(bytes(t));
    collectives_->broadcast(data, from.nbytes());
  }

  Started start_reduce(std::span<const Reduction> reductions, bool timed) const override {
    std::vector<Reduction> whole;
    std::vector<Reduction> others;
    for (const Reduction& r : reductions) (can_sum(r) ? whole : others).push_back(r);
    Started started = sum(whole, timed, [](const Tensor& sum) { return std::vector{bytes(sum)}; });
    if (!others.empty()) copy_transport()->reduce(others);
    return started;
  }

  Started start_all_reduce(std::span<const Reduction> reductions, std::span<const std::vector<Tensor>> buffers,
                           bool timed) const override {
    const bool whole = std::all_of(reductions.begin(), reductions.end(), [&](const auto& r) { return can_sum(r); }) &&
                       std::all_of(buffers.begin(), buffers.end(), [&](const auto& b) { return is_whole(b); });
    if (!whole) return Transport::start_all_reduce(reductions, buffers, timed);
    return sum(reductions, timed, [&](const Tensor& sum) {
      const auto in =
          std::find_if(buffers.begin(), buffers.end(), [&](const auto& b) { return b[0].dtype() == sum.dtype(); });
      std::vector<std::byte*> outs;
      for (const Tensor& t : *in) outs.push_back(bytes(t) + (bytes(sum) - bytes((*in)[0])));
      return outs;
    });
  }

 private:
  bool can_sum(const Reduction& r) const {
    return is_whole(r.parts) && r.sum.device() == devices_[0] && r.sum.dtype() != kBool;
  }
  /// outs(sum) is where the sum goes.
  template <class F>
  Started sum(std::span<const Reduction> reductions, bool timed, F outs) const {
    if (reductions.empty()) return {};
    std::vector<Collectives::Sum> sums;
    std::vector<Tensor> kept;
    for (const Reduction& r : reductions) {
      Collectives::Sum& sum = sums.emplace_back(Collectives::Sum{{}, outs(r.sum), r.sum.numel(), r.sum.dtype()});
      for (const Tensor& part : r.parts) {
        kept.push_back(contiguous(part.detach()));
        sum.parts.push_back(bytes(kept.back()));
      }
    }
    Started started;
    for (Collectives::Span& span : collectives_->start_reduce(sums, timed)) {
      started.times.emplace_back(TimeMark(std::move(span.begin)), TimeMark(std::move(span.end)));
    }
    started.finish = Finish([collectives = collectives_, kept = std::move(kept)] { collectives->finish(); });
    return started;
  }
  /// One tensor per device, in their order.
  bool is_whole(std::span<const Tensor> tensors) const {
    if (tensors.size() != devices_.size()) return false;
    for (std::size_t i = 0; i < devices_.size(); ++i) {
      if (tensors[i].device() != devices_[i]) return false;
    }
    return true;
  }

  std::vector<Device> devices_;
  std::shared_ptr<Collectives> collectives_;
};

}  // namespace

Transport::Started Transport::start_all_reduce(std::span<const Reduction> reductions,
                                               std::span<const std::vector<Tensor>> buffers, bool) const {
  reduce(reductions);
  for (const std::vector<Tensor>& b : buffers) broadcast(b[0], std::span(b).subspan(1));
  return {};
}

TransportPtr copy_transport() {
  static const auto copies = std::make_shared<const CopyTransport>(false);
  return copies;
}

TransportPtr host_transport() {
  static const auto by_host = std::make_shared<const CopyTransport>(true);
  return by_host;
}

namespace {

/// Null where there is no NCCL for these devices.
TransportPtr nccl_transport(const std::vector<Device>& devices) {
  std::vector<kernels::cuda::Queue*> queues;
  for (Device device : devices) {
    kernels::cuda::Queue* queue = device_state(device).queue;
    if (!queue) return nullptr;
    queues.push_back(queue);
  }
  auto collectives = Collectives::make(queues);
  if (!collectives) return nullptr;
  return std::make_shared<const NcclTransport>(devices, std::move(collectives));
}

}  // namespace

TransportPtr make_transport(const std::vector<Device>& devices, TransportKind kind) {
  if (kind == TransportKind::Host) return host_transport();
  if (kind == TransportKind::Copies) return copy_transport();
  if (TransportPtr nccl = nccl_transport(devices)) return nccl;
  if (kind == TransportKind::NCCL) {
    throw DeviceError("transport: NCCL needs a build with it and at least two devices on different GPUs, got " +
                      str(devices));
  }
  for (const Device from : devices) {
    for (const Device to : devices) {
      if (route_between(from, to) == Route::ThroughHost) {
        return std::make_shared<const CopyTransport>(true,
                                                     str(from) + " and " + str(to) + " do not use each other's memory");
      }
    }
  }
  return copy_transport();
}

}  // namespace tandem::parallel
