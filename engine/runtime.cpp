#include "runtime.h"

#include <fmt/format.h>

#include <pthread.h>

#include <atomic>
#include <cstring>
#include <thread>

#include "context.h"
#include "error.h"

namespace tandem {
namespace {

std::atomic<std::uint64_t> current_seed{0};
// A device that is first used after manual_seed starts from that seed, one used before is told.
std::mutex seed_mutex;

thread_local const Device* worker_device = nullptr;

void release_cache(int device) { empty_cache(cuda(device)); }

/// The elements from `first` on of a draw of `n`, for all of which the generator moves.
kernels::PhiloxState take(GeneratorState& generator, Device device, std::int64_t n, DType dtype,
                          std::int64_t first = 0) {
  const std::int64_t per_block = dtype == kFloat64 ? 2 : 4;
  const kernels::PhiloxState out{generator.seed, static_cast<std::uint64_t>(device.index),
                                 generator.offset + static_cast<std::uint64_t>(first / per_block), first % per_block};
  generator.offset += static_cast<std::uint64_t>((n + per_block - 1) / per_block);
  return out;
}

kernels::PhiloxState take(SampleRange& samples, Device device, std::int64_t n, DType dtype) {
  const std::int64_t each = samples.count > 0 ? n / samples.count : 0;
  if (each * samples.count != n) {
    throw ValueError(
        fmt::format("random numbers on {}: got {} elements for {} of a batch's {} samples, wanted as many for each",
                    str(device), n, samples.count, samples.total));
  }
  return take(samples.generator, samples.home, each * samples.total, dtype, each * samples.first);
}

}  // namespace

DeviceState::DeviceState(Device d)
    : device(d),
      queue(d.type == DeviceType::CUDA ? kernels::cuda::open_queue(d.index, gpu_of(d), release_cache) : nullptr),
      backend(queue ? &kernels::cuda_backend() : &kernels::cpu_backend()),
      allocator(make_allocator(d, queue)),
      worker(d) {
  generator.seed = current_seed.load();
}

const Device* Worker::current() { return worker_device; }

void Worker::submit(std::function<void()> job) {
  static std::atomic<bool> forked{false};
  if (forked) {
    throw Error("this process was forked after Tandem had started a thread for " + str(device_) +
                " or another device, and has no such threads: use devices in the parent alone, or exec() a program");
  }
  {
    const std::scoped_lock lock(mutex_);
    jobs_.push_back(std::move(job));
    if (!started_) {
      [[maybe_unused]] static const int noticing = pthread_atfork(nullptr, nullptr, [] { forked = true; });
      // Detached, and its state never destroyed: a program may exit at any time without waiting for idle workers.
      std::thread(&Worker::loop, this).detach();
      started_ = true;
    }
  }
  ready_.notify_one();
}

void Worker::loop() {
  worker_device = &device_;
  std::unique_lock lock(mutex_);
  while (true) {
    ready_.wait(lock, [this] { return !jobs_.empty(); });
    {
      const std::function<void()> job = std::move(jobs_.front());
      jobs_.pop_front();
      lock.unlock();
      job();
    }
    lock.lock();
  }
}

void copy_bytes(Device to_device, std::byte* to, Device from_device, const std::byte* from, std::size_t bytes) {
  if (bytes == 0) return;
  kernels::cuda::Queue* into = device_state(to_device).queue;
  kernels::cuda::Queue* out_of = device_state(from_device).queue;
  if (into && out_of) {
    kernels::cuda::copy_between(*into, to, *out_of, from, bytes);
  } else if (into) {
    kernels::cuda::copy_in(*into, to, from, bytes);
  } else if (out_of) {
    kernels::cuda::copy_out(*out_of, to, from, bytes);
    check_index_faults(from_device);
  } else {
    std::memcpy(to, from, bytes);
  }
}

void throw_index_error(const char* op, const kernels::IndexFault& f) {
  throw IndexError(
      fmt::format("{}: index {} at position {} is out of range: wanted 0 to {}", op, f.value, f.position, f.limit - 1));
}

void check_index_faults(Device device) {
  kernels::cuda::Queue* queue = device_state(device).queue;
  if (!queue) return;
  const kernels::cuda::FaultReport report = kernels::cuda::take_fault(*queue);
  if (report.fault.set) throw_index_error(report.op, report.fault);
}

void synchronize(Device device) {
  kernels::cuda::Queue* queue = device_state(device).queue;
  if (!queue) return;
  kernels::cuda::synchronize(*queue);
  check_index_faults(device);
}

void manual_seed(std::uint64_t seed) {
  const std::scoped_lock lock(seed_mutex);
  current_seed = seed;
  for (Device device : used_devices()) set_generator_state(device, {seed, 0});
}

GeneratorState generator_state(Device device) {
  DeviceState& state = device_state(device);
  const std::scoped_lock lock(state.generator_mutex);
  return state.generator;
}

void set_generator_state(Device device, GeneratorState state) {
  DeviceState& of = device_state(device);
  const std::scoped_lock lock(of.generator_mutex);
  of.generator = state;
}

kernels::PhiloxState reserve_random(Device device, std::int64_t n, DType dtype) {
  if (context().samples) return take(*context().samples, device, n, dtype);
  DeviceState& state = device_state(device);
  const std::scoped_lock lock(state.generator_mutex);
  return take(state.generator, device, n, dtype);
}

}  // namespace tandem
