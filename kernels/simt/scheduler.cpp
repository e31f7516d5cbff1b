#include "scheduler.h"

#include <algorithm>
#include <array>
#include <random>
#include <thread>
#include <vector>

#include "fault.h"
#include "memory.h"
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
  unsigned streams_made = 0;
  std::atomic<int> running{0};

  // TANDEM_SIM_CHECK=streams
  std::vector<std::uint64_t> operations;  // by slot
  std::vector<unsigned> free_slots;
  std::array<Time, kMaxDevices> ended{};  // of streams that are no more, by device
  Time host;                              // what the host knows to be done
  std::shared_ptr<const Time> snapshot;   // of `host`, or null
};
Machine& machine() {
  static auto* m = new Machine;
  return *m;
}

// Called with the machine locked.
void host_learns(const Time& time) {
  Machine& m = machine();
  if (!options().check.streams) return;
  join(m.host, time);
  m.snapshot = nullptr;
}
void take_slot(CUstream_st& s) {
  Machine& m = machine();
  if (!options().check.streams) return;
  if (m.free_slots.empty()) {
    m.free_slots.push_back(static_cast<unsigned>(m.operations.size()));
    m.operations.push_back(0);
  }
  s.slot = m.free_slots.back();
  m.free_slots.pop_back();
  s.operations = m.operations[s.slot];
}
void give_slot_back(const CUstream_st& s) {
  Machine& m = machine();
  if (!options().check.streams) return;
  m.operations[s.slot] = s.operations;
  join(m.ended[static_cast<std::size_t>(s.device)], s.time);
  m.free_slots.push_back(s.slot);
}
void start_clock(CUstream_st& s, const Operation& operation, RunningOperation& self) {
  if (!options().check.streams) return;
  if (operation.after) join(s.time, *operation.after);
  if (operation.takes) join(s.time, operation.takes->time);
  ++s.operations;
  if (s.time.size() <= s.slot) s.time.resize(s.slot + 1);
  s.time[s.slot] = s.operations;
  self.id = OperationId{s.slot} << 48 | s.operations;
  self.before = &s.time;
  self.stream = s.number;
  if (operation.gives) join(operation.gives->time, s.time);
  remember(self);
}

/// Closes device memory when no operation is left to use it.
class MemoryUse {
 public:
  MemoryUse() {
    ++machine().running;
    if (options().check.memory) install_fault_handler();
  }
  ~MemoryUse() {
    if (--machine().running == 0 && options().check.memory) close_allocations();
  }
  MemoryUse(const MemoryUse&) = delete;
  MemoryUse& operator=(const MemoryUse&) = delete;
};

bool can_start(CUstream_st& s) {
  return !s.busy && !s.queue.empty() && (!s.queue.front().ready || s.queue.front().ready());
}

/// Runs the first operation of a stream; `lock` is held before and after.
void run_first(CUstream_st& s, std::unique_lock<std::mutex>& lock) {
  Machine& m = machine();
  Operation operation = std::move(s.queue.front());
  s.queue.pop_front();
  s.busy = true;
  RunningOperation self{operation.name, s.device};
  start_clock(s, operation, self);
  lock.unlock();
  if (operation.work && (m.errors[static_cast<std::size_t>(s.device)] == cudaSuccess || operation.wakes_others)) {
    const MemoryUse use;
    const RunningOperation* outer = running_operation();
    set_running_operation(&self);
    if (const cudaError_t error = operation.work(); error != cudaSuccess) kill_device(s.device, error);
    set_running_operation(outer);
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
  give_slot_back(*s);
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

/// Runs the first operation of some stream that can go on, if there is one.
bool run_one(std::unique_lock<std::mutex>& lock) {
  Machine& m = machine();
  std::vector<CUstream_st*> ready;
  for (CUstream_st* s : m.streams) {
    if (can_start(*s)) ready.push_back(s);
  }
  if (ready.empty()) return false;
  run_first(*ready[m.random() % ready.size()], lock);
  return true;
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
    if (run_one(lock)) continue;
    // Another host thread may be about to queue, or is running, what this one waits for.
    const bool busy = std::any_of(m.streams.begin(), m.streams.end(), [](const CUstream_st* s) { return s->busy; });
    if (m.progress.wait_for(lock, std::chrono::seconds(busy ? 60 : 1)) == std::cv_status::timeout && !busy) {
      return done();
    }
  }
  return true;
}

/// The host only looks whether something is done. Where it runs the operations itself, it runs one, so that a program
/// that looks again and again gets somewhere.
void let_progress(std::unique_lock<std::mutex>& lock) {
  if (options().schedule != Schedule::Threads) run_one(lock);
}

bool empty(const CUstream_st& s) { return s.queue.empty() && !s.busy; }

}  // namespace

CUstream_st* make_stream(int device, unsigned flags, int priority) {
  auto* s = new CUstream_st{device, flags, priority};
  Machine& m = machine();
  const std::scoped_lock lock(m.mutex);
  s->number = ++m.streams_made;
  take_slot(*s);
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
  if (options().check.streams) {
    if (!m.snapshot) m.snapshot = std::make_shared<const Time>(m.host);
    operation.after = m.snapshot;
  }
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
  const bool done = wait_until([&] { return empty(*stream); });
  const std::scoped_lock lock(machine().mutex);
  host_learns(stream->time);
  return done;
}
bool drain_device(int device) {
  const auto& all = machine().streams;
  const bool done = wait_until([&] {
    return std::all_of(all.begin(), all.end(), [&](const CUstream_st* s) { return s->device != device || empty(*s); });
  });
  const std::scoped_lock lock(machine().mutex);
  for (const CUstream_st* s : all) {
    if (s->device == device) host_learns(s->time);
  }
  host_learns(machine().ended[static_cast<std::size_t>(device)]);
  return done;
}
bool wait_for(const Point& point) {
  return wait_until([&] { return point.done.load(); }) && is_done(point);
}
bool is_done(const Point& point) {
  std::unique_lock lock(machine().mutex);
  if (!point.done) let_progress(lock);
  if (point.done) host_learns(point.time);
  return point.done;
}
bool is_idle(CUstream_st* stream) {
  Machine& m = machine();
  std::unique_lock lock(m.mutex);
  if (!empty(*stream)) let_progress(lock);
  if (!empty(*stream)) return false;
  host_learns(stream->time);
  return true;
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
