#include "runtime.h"

#include <atomic>
#include <thread>

namespace tandem {
namespace {

std::atomic<std::uint64_t> current_seed{0};
// A device that is first used after manual_seed starts from that seed, one used before is told.
std::mutex seed_mutex;

thread_local const Device* worker_device = nullptr;

}  // namespace

DeviceState::DeviceState(Device d)
    : device(d), backend(&kernels::cpu_backend()), allocator(make_cpu_allocator(d)), worker(d) {
  generator.seed = current_seed.load();
}

const Device* Worker::current() { return worker_device; }

void Worker::submit(std::function<void()> job) {
  {
    const std::scoped_lock lock(mutex_);
    jobs_.push_back(std::move(job));
    if (!started_) {
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

void manual_seed(std::uint64_t seed) {
  const std::scoped_lock lock(seed_mutex);
  current_seed = seed;
  for (int i = 0; i < device_count(DeviceType::CPU); ++i) {
    if (is_used(cpu(i))) set_generator_state(cpu(i), {seed, 0});
  }
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
  const std::int64_t per_block = dtype == kFloat64 ? 2 : 4;
  DeviceState& state = device_state(device);
  const std::scoped_lock lock(state.generator_mutex);
  const kernels::PhiloxState out{state.generator.seed, static_cast<std::uint64_t>(device.index),
                                 state.generator.offset};
  state.generator.offset += static_cast<std::uint64_t>((n + per_block - 1) / per_block);
  return out;
}

}  // namespace tandem
