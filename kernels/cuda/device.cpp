// CUDA devices for the engine: cuda.h.

#include <algorithm>
#include <array>
#include <mutex>
#include <optional>

#include "check.h"
#include "queue.h"

namespace tandem::kernels::cuda {
namespace {

cudaError_t count_gpus(int& count) {
  const cudaError_t code = cudaGetDeviceCount(&count);
  if (code != cudaSuccess) {
    static_cast<void>(cudaGetLastError());
    count = 0;
  }
  return code;
}

/// Lets a GPU use another's memory, where it can.
bool reach(int from, int to) {
  int can = 0;
  const DeviceGuard guard(from);
  cudaError_t code = cudaDeviceCanAccessPeer(&can, from, to);
  if (code == cudaSuccess && can) code = cudaDeviceEnablePeerAccess(to, 0);
  static_cast<void>(cudaGetLastError());
  return can && (code == cudaSuccess || code == cudaErrorPeerAccessAlreadyEnabled);
}

/// Lets two GPUs use each other's memory, at the first call for them, and says whether they can.
bool connect(int a, int b) {
  static std::mutex mutex;
  static std::array<std::array<std::optional<bool>, 64>, 64> known;
  if (a == b) return true;
  const std::scoped_lock lock(mutex);
  const auto [low, high] = std::minmax({a, b});
  std::optional<bool>& connected = known.at(static_cast<std::size_t>(low)).at(static_cast<std::size_t>(high));
  if (!connected) {
    const bool there = reach(a, b), back = reach(b, a);
    connected = there && back;
  }
  return *connected;
}

}  // namespace

int gpu_count() {
  int count = 0;
  static_cast<void>(count_gpus(count));
  return std::min(count, 64);
}

std::string why_no_gpus() {
  int count = 0;
  const cudaError_t code = count_gpus(count);
  const std::string reason = code == cudaSuccess ? "" : std::string(" (") + cudaGetErrorString(code) + ")";
  return "CUDA finds no GPU" + reason + "; a build with -Dcuda=simulated has simulated ones";
}

std::string gpu_name(int gpu) {
  cudaDeviceProp properties{};
  check(cudaGetDeviceProperties(&properties, gpu), "cudaGetDeviceProperties");
  return properties.name;
}

Queue* open_queue(int device, int gpu, void (*release_cache)(int device)) {
  return new Queue(device, gpu, release_cache);
}

std::byte* allocate(Queue& queue, std::size_t bytes) {
  queue.check_alive();
  const DeviceGuard guard(queue.physical());
  void* data = nullptr;
  const cudaError_t code = cudaMalloc(&data, bytes);
  if (code == cudaErrorMemoryAllocation) {
    static_cast<void>(cudaGetLastError());
    return nullptr;
  }
  check(code, "cudaMalloc");
  return static_cast<std::byte*>(data);
}

void free(Queue& queue, std::byte* data) noexcept {
  int current = 0;
  static_cast<void>(cudaGetDevice(&current));
  static_cast<void>(cudaSetDevice(queue.physical()));
  static_cast<void>(cudaFree(data));
  static_cast<void>(cudaSetDevice(current));
}

void fill_bytes(Queue& queue, std::byte* data, unsigned char value, std::size_t bytes) {
  queue.check_alive();
  const DeviceGuard guard(queue.physical());
  check(cudaMemsetAsync(data, value, bytes, queue.compute().get()), "cudaMemsetAsync");
}

void copy_in(Queue& queue, std::byte* to, const std::byte* from, std::size_t bytes) {
  queue.check_alive();
  const DeviceGuard guard(queue.physical());
  queue.copies().wait_for(queue.compute());
  queue.staging().copy_in(queue.copies(), to, from, bytes);
  queue.compute().wait_for(queue.copies());
}

void copy_out(Queue& queue, std::byte* to, const std::byte* from, std::size_t bytes) {
  queue.check_alive();
  const DeviceGuard guard(queue.physical());
  queue.copies().wait_for(queue.compute());
  queue.staging().copy_out(queue.copies(), to, from, bytes);
}

bool peers(const Queue& a, const Queue& b) { return connect(a.physical(), b.physical()); }

void copy_between(Queue& to_queue, std::byte* to, Queue& from_queue, const std::byte* from, std::size_t bytes) {
  to_queue.check_alive();
  from_queue.check_alive();
  const int here = to_queue.physical(), there = from_queue.physical();
  connect(here, there);
  const DeviceGuard guard(here);
  const StreamHandle& copies = to_queue.copies();
  copies.wait_for(to_queue.compute());
  copies.wait_for(from_queue.compute());
  check(here == there ? cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, copies.get())
                      : cudaMemcpyPeerAsync(to, here, from, there, bytes, copies.get()),
        "copy between devices");
  to_queue.compute().wait_for(copies);
  from_queue.compute().wait_for(copies);
}

void synchronize(Queue& queue) { queue.synchronize(); }
FaultReport take_fault(Queue& queue) { return queue.take_fault(); }

struct Mark::State {
  Queue& queue;
  std::shared_ptr<const Anchor> base;
  std::shared_ptr<Anchor> point;
};

Mark::Mark(Queue& queue, Lane lane)
    : state_(new State{queue, queue.anchor(), std::make_shared<Anchor>(Anchor{Event(queue.physical(), true), 0})}) {
  state_->point->event.record((lane == Lane::Compute ? queue.compute() : queue.communication()).get());
}
Mark::~Mark() = default;
Mark::Mark(Mark&&) noexcept = default;
Mark& Mark::operator=(Mark&&) noexcept = default;

bool Mark::passed() const { return state_->point->event.done(); }

std::int64_t Mark::time_ns() const {
  Anchor& point = *state_->point;
  if (point.host_ns == 0) {
    point.event.synchronize();
    const float ms = point.event.milliseconds_since(state_->base->event);
    point.host_ns = state_->base->host_ns + 1e6 * static_cast<double>(ms);
    // CUDA's floats lose microseconds after a few seconds.
    if (ms > 1000) state_->queue.move_anchor(state_->point);
  }
  return static_cast<std::int64_t>(point.host_ns);
}

}  // namespace tandem::kernels::cuda
