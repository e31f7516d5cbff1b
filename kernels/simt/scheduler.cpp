#include "scheduler.h"

#include <algorithm>
#include <array>
#include <random>
#include <thread>
#include <vector>

#include "options.h"

namespace tandem::simt {
namespace {

// Never destroyed: worker threads may outlive main().
struct Machine {
  std::mutex mutex;
  std::condition_variable progress;   // for host threads that wait
  std::vector<CUstream_st*> streams;  // those that end, too, until they have run all
  std::array<CUstream_st*, 16> defaults{};
  std::array<std::atomic<cudaError_t>, 16> errors{};
  std::mt19937 random{options().schedule_seed};
};
Machine& machine() {
  static auto* m = new Machine;
  return *m;
}

bool can_start(CUstream_st& s) {
  return !s.busy && !s.queue.empty() && (!s.queue.front().ready || s.queue.front().ready());
}

/// Runs the first operation of a stream; `lock` is held before and after.
void run_first(CUstream_st& s, std::unique_lock<std::mutex>& lock) {
  Machine& m = machine();
  Operation operation = std::move(s.queue.front());
  s.queue.pop_front();
  s.busy = true;
  lock.unlock();
  if (operation.work && (m.errors[static_cast<std::size_t>(s.device)] == cudaSuccess || operation.wakes_others)) {
    if (const cudaError_t error = operation.work(); error != cudaSuccess) kill_device(s.device, error);
  }
  const bool wakes = operation.wakes_others;
  operation = {};
  lock.lock();
  s.busy = false;
  if (wakes) {
    for (CUstream_st* other : m.streams) other->changed.notify_all();
  }
  m.progress.notify_all();
}

/// Called with the machine locked.
void forget(CUstream_st* s) {
  Machine& m = machine();
  m.streams.erase(std::find(m.streams.begin(), m.streams.end(), s));
  m.progress.notify_all();
}

void work_on(CUstream_st* s) {
  std::unique_lock lock(machine().mutex);
  while (true) {
    s->changed.wait(lock, [&] { return can_start(*s) || (s->ending && s->queue.empty()); });
    if (s->queue.empty()) break;
    run_first(*s, lock);
  }
  forget(s);
  lock.unlock();
  delete s;
}

/// Waits until `done()`, which is called with the machine locked.
template <class F>
bool wait_until(F done) {
  Machine& m = machine();
  std::unique_lock lock(m.mutex);
  if (options().schedule == Schedule::Threads) {
    m.progress.wait(lock, done);
    return true;
  }
  while (!done()) {
    std::vector<CUstream_st*> ready;
    for (CUstream_st* s : m.streams) {
      if (can_start(*s)) ready.push_back(s);
    }
    if (ready.empty()) {
      // Another host thread may be about to queue, or is running, what this one waits for.
      const bool busy = std::any_of(m.streams.begin(), m.streams.end(), [](const CUstream_st* s) { return s->busy; });
      if (m.progress.wait_for(lock, std::chrono::seconds(busy ? 60 : 1)) == std::cv_status::timeout && !busy) {
        return done();
      }
      continue;
    }
    run_first(*ready[m.random() % ready.size()], lock);
  }
  return true;
}

bool empty(const CUstream_st& s) { return s.queue.empty() && !s.busy; }

}  // namespace

CUstream_st* make_stream(int device, unsigned flags, int priority) {
  auto* s = new CUstream_st{device, flags, priority, {}, false, false, {}};
  Machine& m = machine();
  const std::scoped_lock lock(m.mutex);
  m.streams.push_back(s);
  if (options().schedule == Schedule::Threads) std::thread(work_on, s).detach();
  return s;
}

bool is_stream(const CUstream_st* stream) {
  Machine& m = machine();
  const std::scoped_lock lock(m.mutex);
  return std::any_of(m.streams.begin(), m.streams.end(),
                     [&](const CUstream_st* s) { return s == stream && !s->ending; });
}

void end_stream(CUstream_st* stream) {
  if (options().schedule != Schedule::Threads) drain(stream);
  Machine& m = machine();
  const std::scoped_lock lock(m.mutex);
  if (options().schedule == Schedule::Threads) {
    stream->ending = true;
    stream->changed.notify_all();
  } else {
    forget(stream);
    delete stream;
  }
}

CUstream_st* default_stream(int device) {
  Machine& m = machine();
  CUstream_st*& slot = m.defaults[static_cast<std::size_t>(device)];
  {
    const std::scoped_lock lock(m.mutex);
    if (slot) return slot;
  }
  CUstream_st* made = make_stream(device, 0, 0);
  const std::scoped_lock lock(m.mutex);
  if (!slot) slot = made;
  return slot;
}

void put(CUstream_st* stream, Operation operation) {
  Machine& m = machine();
  std::unique_lock lock(m.mutex);
  stream->queue.push_back(std::move(operation));
  if (options().schedule == Schedule::Threads) {
    stream->changed.notify_all();
    return;
  }
  m.progress.notify_all();
  if (options().schedule == Schedule::Eager) {
    while (can_start(*stream)) run_first(*stream, lock);
  }
}

bool drain(CUstream_st* stream) {
  return wait_until([&] { return empty(*stream); });
}
bool drain_device(int device) {
  return wait_until([&] {
    const auto& all = machine().streams;
    return std::all_of(all.begin(), all.end(), [&](const CUstream_st* s) { return s->device != device || empty(*s); });
  });
}
bool wait_for(const Point& point) {
  return wait_until([&] { return point.done.load(); });
}
bool is_idle(CUstream_st* stream) {
  Machine& m = machine();
  const std::scoped_lock lock(m.mutex);
  return empty(*stream);
}
void wake() {
  Machine& m = machine();
  const std::scoped_lock lock(m.mutex);
  for (CUstream_st* s : m.streams) s->changed.notify_all();
  m.progress.notify_all();
}

cudaError_t device_error(int device) { return machine().errors[static_cast<std::size_t>(device)]; }
void kill_device(int device, cudaError_t error) {
  cudaError_t none = cudaSuccess;
  machine().errors[static_cast<std::size_t>(device)].compare_exchange_strong(none, error);
}
void revive_devices() {
  for (auto& error : machine().errors) error = cudaSuccess;
}

}  // namespace tandem::simt
