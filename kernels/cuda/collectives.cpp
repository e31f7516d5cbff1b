// Collectives between the devices of one process: cuda.h.

#include <optional>
#include <set>

#include "nccl.h"
#include "queue.h"

namespace tandem::kernels::cuda {
namespace {

// A device runs the collectives of all groups on one stream, and all devices get them in one order: so two groups on
// the same devices never wait for each other.
std::mutex order;

}  // namespace

struct Collectives::State {
  explicit State(const std::vector<Queue*>& all, const std::vector<int>& gpus) : queues(all), devices(gpus) {
    nccl.emplace(devices);
  }

  /// Calls part(rank, stream) for every rank, after what was queued before; what is queued later does not wait. A
  /// failure, also of an earlier collective while it ran, is the end of the communicator; the next call has a new one.
  template <class F>
  std::vector<Span> start(F part, bool timed) {
    std::vector<Mark> begins;
    std::vector<Span> spans;
    for (const Queue* queue : queues) queue->check_alive();
    const std::scoped_lock lock(order);
    if (!nccl) nccl.emplace(devices);
    try {
      nccl->check_async();
      for (Queue* queue : queues) {
        queue->communication().wait_for(queue->compute());
        if (timed) begins.emplace_back(*queue, Mark::Lane::Communication);
      }
      Communicator::Group group;
      for (std::size_t rank = 0; rank < queues.size(); ++rank) {
        const DeviceGuard guard(queues[rank]->physical());
        part(static_cast<int>(rank), queues[rank]->communication().get());
      }
      group.end();
      for (std::size_t rank = 0; rank < begins.size(); ++rank) {
        spans.push_back({std::move(begins[rank]), Mark(*queues[rank], Mark::Lane::Communication)});
      }
    } catch (...) {
      nccl->abort();
      nccl.reset();
      throw;
    }
    return spans;
  }
  /// What is queued later waits for what was started.
  void finish() {
    for (const Queue* queue : queues) queue->compute().wait_for(queue->communication());
  }

  std::vector<Queue*> queues;
  std::vector<int> devices;
  std::optional<Communicator> nccl;
};

std::unique_ptr<Collectives> Collectives::make(const std::vector<Queue*>& queues) {
  std::vector<int> gpus;
  for (const Queue* queue : queues) gpus.push_back(queue->physical());
  const bool distinct = std::set(gpus.begin(), gpus.end()).size() == gpus.size();
  if (!nccl_available() || gpus.size() < 2 || !distinct) return nullptr;
  return std::unique_ptr<Collectives>(new Collectives(std::make_unique<State>(queues, gpus)));
}

Collectives::Collectives(std::unique_ptr<State> state) : state_(std::move(state)) {}
Collectives::~Collectives() = default;

void Collectives::broadcast(const std::vector<std::byte*>& data, std::size_t bytes) {
  if (bytes == 0) return;
  const auto part = [&](int rank, cudaStream_t stream) {
    std::byte* mine = data[static_cast<std::size_t>(rank)];
    state_->nccl->broadcast(rank, mine, static_cast<std::int64_t>(bytes), DType::UInt8, 0, stream);
  };
  state_->start(part, false);
  state_->finish();
}

std::vector<Collectives::Span> Collectives::start_reduce(const std::vector<Sum>& sums, bool timed) {
  const auto part = [&](int rank, cudaStream_t stream) {
    for (const Sum& sum : sums) {
      const auto r = static_cast<std::size_t>(rank);
      if (sum.count == 0) continue;
      if (sum.outs.size() == 1) {
        state_->nccl->reduce(rank, sum.parts[r], sum.outs[0], sum.count, sum.dtype, 0, stream);
      } else {
        state_->nccl->all_reduce(rank, sum.parts[r], sum.outs[r], sum.count, sum.dtype, stream);
      }
    }
  };
  return state_->start(part, timed);
}

void Collectives::finish() { state_->finish(); }

}  // namespace tandem::kernels::cuda
