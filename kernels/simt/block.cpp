#include "block.h"

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <deque>
#include <memory>
#include <numeric>
#include <random>
#include <vector>

#include "fiber.h"
#include "instrument.h"
#include "symbol.h"

namespace tandem::simt {
namespace {

std::string str(uint3 v) {
  return "(" + std::to_string(v.x) + ", " + std::to_string(v.y) + ", " + std::to_string(v.z) + ")";
}
std::string str(Place p) { return std::string(p.file) + ":" + std::to_string(p.line); }

std::string hex(unsigned v) {
  char text[16];
  std::snprintf(text, sizeof text, "0x%08x", v);
  return text;
}

struct Thread {
  uint3 index;
  Fiber* fiber = nullptr;       // where it waits
  const char* waits = nullptr;  // for "a barrier" or "other lanes of its warp"
  unsigned mask = 0;            // of those
  Place place{};
  bool done = false;
};

/// The blocks of one grid, one after another. Fibers live as long as the OS thread.
class Runner {
 public:
  std::string run(const LaunchShape& shape, const std::function<void()>& thread, unsigned seed);

  int barrier(int value, Place place);
  Meeting& meet(unsigned mask, std::uint64_t value, Place place, bool orders);
  void leave(Meeting& meeting);
  unsigned lane() const { return running_ % 32; }
  void* dynamic_shared() { return shared_; }
  void abandon(const std::string& why);
  [[noreturn]] void stop();
  bool active() const { return shape_ != nullptr; }
  std::string whereabouts() const;

 private:
  void run_block();
  void run_threads();  // on a fiber: starts threads until none is left, then goes back
  void wait(const char* what, unsigned mask, Place place);
  void make_ready(std::size_t thread) { ready_.push_back(thread); }
  void resume(std::size_t thread);
  std::string divergence() const;

  const LaunchShape* shape_ = nullptr;
  const std::function<void()>* body_ = nullptr;
  std::mt19937 random_;
  bool shuffled_ = false;
  std::string failure_;

  Fiber scheduler_;
  std::vector<std::unique_ptr<Fiber>> fibers_;
  std::vector<Fiber*> idle_;
  Fiber* current_ = &scheduler_;

  std::vector<Thread> threads_;
  std::vector<std::size_t> to_start_;  // in reverse
  std::deque<std::size_t> ready_;
  std::size_t running_ = 0, finished_ = 0;

  std::size_t at_barrier_ = 0;
  int barrier_sum_ = 0, barrier_result_ = 0;
  Place barrier_place_{};
  std::vector<std::vector<std::unique_ptr<Meeting>>> meetings_;  // by warp

  std::vector<std::max_align_t> shared_storage_;  // with kZone bytes on either side
  void* shared_ = nullptr;
  AccessChecker checker_;
};

thread_local Runner runner;

void Runner::run_threads() {
  while (true) {
    while (!to_start_.empty()) {
      running_ = to_start_.back();
      to_start_.pop_back();
      threadIdx = threads_[running_].index;
      checker_.run(running_);
      (*body_)();
      checker_.pause();
      threads_[running_].done = true;
      ++finished_;
    }
    idle_.push_back(current_);
    Fiber& self = *current_;
    current_ = &scheduler_;
    scheduler_.switch_from(self);
  }
}

void Runner::resume(std::size_t thread) {
  running_ = thread;
  threadIdx = threads_[thread].index;
  threads_[thread].waits = nullptr;
  current_ = threads_[thread].fiber;
  current_->switch_from(scheduler_);
}

void Runner::wait(const char* what, unsigned mask, Place place) {
  Thread& self = threads_[running_];
  self.waits = what;
  self.mask = mask;
  self.place = place;
  self.fiber = current_;
  Fiber& fiber = *current_;
  current_ = &scheduler_;
  scheduler_.switch_from(fiber);
}

void Runner::run_block() {
  const std::size_t n = threads_.size();
  if (is_instrumented()) checker_.start_block(n);
  to_start_.resize(n);
  std::iota(to_start_.rbegin(), to_start_.rend(), std::size_t{0});
  if (shuffled_) std::shuffle(to_start_.begin(), to_start_.end(), random_);
  for (Thread& t : threads_) t.done = false, t.waits = nullptr;
  ready_.clear();
  finished_ = at_barrier_ = 0;
  barrier_sum_ = 0;
  for (auto& warp : meetings_) warp.clear();

  while (finished_ < n && failure_.empty()) {
    const std::size_t choices = ready_.size() + (to_start_.empty() ? 0 : 1);
    if (choices == 0) {
      failure_ = divergence();
      return;
    }
    const std::size_t pick = shuffled_ ? random_() % choices : 0;
    if (pick < ready_.size()) {
      const std::size_t thread = ready_[pick];
      ready_.erase(ready_.begin() + static_cast<std::ptrdiff_t>(pick));
      resume(thread);
      continue;
    }
    if (idle_.empty()) {
      fibers_.push_back(std::make_unique<Fiber>([this] { run_threads(); }));
      idle_.push_back(fibers_.back().get());
    }
    current_ = idle_.back();
    idle_.pop_back();
    current_->switch_from(scheduler_);
  }
}

std::string Runner::run(const LaunchShape& shape, const std::function<void()>& thread, unsigned seed) {
  shape_ = &shape;
  body_ = &thread;
  shuffled_ = seed != 0;
  random_.seed(seed);
  failure_.clear();
  threads_.assign(std::size_t{shape.block.x} * shape.block.y * shape.block.z, {});
  for (std::size_t i = 0; i < threads_.size(); ++i) {
    const auto linear = static_cast<unsigned>(i);
    threads_[i].index = {linear % shape.block.x, linear / shape.block.x % shape.block.y,
                         linear / (shape.block.x * shape.block.y)};
  }
  meetings_.resize((threads_.size() + 31) / 32);
  shared_storage_.resize((shape.shared + 2 * kZone) / sizeof(std::max_align_t) + 1);
  shared_ = reinterpret_cast<char*>(shared_storage_.data()) + kZone;
  if (is_instrumented()) checker_.start_launch(shape, shared_);
  gridDim = shape.grid;
  blockDim = shape.block;
  for (unsigned z = 0; z < shape.grid.z && failure_.empty(); ++z) {
    for (unsigned y = 0; y < shape.grid.y && failure_.empty(); ++y) {
      for (unsigned x = 0; x < shape.grid.x && failure_.empty(); ++x) {
        blockIdx = {x, y, z};
        std::memset(shared_, 0xff, shape.shared);  // NaN: nobody may read what nobody wrote
        run_block();
      }
    }
  }
  shape_ = nullptr;
  if (!failure_.empty()) {
    // Fibers of abandoned threads hold half a kernel each.
    fibers_.clear();
    idle_.clear();
  }
  return failure_;
}

int Runner::barrier(int value, Place place) {
  checker_.pause();
  if (at_barrier_ > 0 && barrier_place_.line != place.line) {
    abandon("barrier divergence: some threads of the block wait at " + str(barrier_place_) + ", this one at " +
            str(place));
    stop();
  }
  barrier_place_ = place;
  barrier_sum_ += value;
  if (++at_barrier_ < threads_.size()) {
    wait("a barrier", 0, place);
    checker_.run(running_);
    return barrier_result_;
  }
  if (is_instrumented()) checker_.order().barrier();
  at_barrier_ = 0;
  barrier_result_ = barrier_sum_;
  barrier_sum_ = 0;
  for (std::size_t i = 0; i < threads_.size(); ++i) {
    if (i != running_) make_ready(i);
  }
  checker_.run(running_);
  return barrier_result_;
}

Meeting& Runner::meet(unsigned mask, std::uint64_t value, Place place, bool orders) {
  checker_.pause();
  const unsigned self = lane();
  if ((mask >> self & 1U) == 0) {
    abandon("lane " + std::to_string(self) + " is not in its own mask at " + str(place));
    stop();
  }
  auto& open = meetings_[running_ / 32];
  auto found = std::find_if(open.begin(), open.end(), [&](const auto& m) {
    return m->mask == mask && m->arrived != mask && m->place.line == place.line;
  });
  if (found == open.end()) {
    open.push_back(std::make_unique<Meeting>());
    open.back()->mask = mask;
    open.back()->place = place;
    found = open.end() - 1;
  }
  Meeting& meeting = **found;
  meeting.value[self] = value;
  meeting.arrived |= 1U << self;
  if (meeting.arrived != mask) {
    wait("other lanes of its warp", mask, place);
  } else {
    if (orders && is_instrumented()) checker_.order().warp_barrier(running_ / 32, mask);
    const std::size_t first = running_ / 32 * 32;
    for (unsigned i = 0; i < 32; ++i) {
      if (i != self && (mask >> i & 1U) != 0) make_ready(first + i);
    }
  }
  checker_.run(running_);
  return meeting;
}

void Runner::leave(Meeting& meeting) {
  checker_.pause();
  meeting.left |= 1U << lane();
  if (meeting.left == meeting.mask) {
    auto& open = meetings_[running_ / 32];
    open.erase(std::find_if(open.begin(), open.end(), [&](const auto& m) { return m.get() == &meeting; }));
  }
  checker_.run(running_);
}

void Runner::abandon(const std::string& why) {
  checker_.pause();
  failure_ = why + ", in " + whereabouts();
}

void Runner::stop() {
  Fiber& fiber = *current_;
  current_ = &scheduler_;
  scheduler_.switch_from(fiber);
  std::terminate();
}

std::string Runner::whereabouts() const {
  return "kernel " + name_of_function(shape_->kernel) + ", block " + str(blockIdx) + ", thread " +
         str(threads_[running_].index);
}

std::string Runner::divergence() const {
  std::string text = "barrier divergence in kernel " + name_of_function(shape_->kernel) + ", block " + str(blockIdx) +
                     ": no thread can go on;";
  const Thread* waiting = nullptr;
  std::size_t waits = 0;
  for (const Thread& t : threads_) {
    if (!t.waits) continue;
    ++waits;
    if (!waiting) waiting = &t;
  }
  text += " " + std::to_string(finished_) + " threads have ended, " + std::to_string(waits) + " wait";
  if (waiting) {
    text += ", thread " + str(waiting->index) + " for " + waiting->waits;
    if (waiting->mask != 0) text += " (mask " + hex(waiting->mask) + ")";
    text += " at " + str(waiting->place);
  }
  return text;
}

}  // namespace

std::string run_grid(const LaunchShape& shape, const std::function<void()>& thread, unsigned order_seed) {
  return runner.run(shape, thread, order_seed);
}
void abandon_kernel(const std::string& why) { runner.abandon(why); }
void stop_kernel() { runner.stop(); }
bool in_kernel() { return runner.active(); }
std::string whereabouts() { return runner.active() ? runner.whereabouts() : "host code"; }

int barrier(int value, Place place) { return runner.barrier(value, place); }
Meeting& meet(unsigned mask, std::uint64_t value, Place place) { return runner.meet(mask, value, place, false); }
void synchronize_warp(unsigned mask, Place place) { runner.leave(runner.meet(mask, 0, place, true)); }
void leave(Meeting& meeting) { runner.leave(meeting); }
void fence() {
  // ThreadSanitizer understands this, and not std::atomic_thread_fence.
  static std::atomic<int> all{0};
  all.fetch_add(1);
}
unsigned lane() { return runner.lane(); }
void* dynamic_shared() { return runner.dynamic_shared(); }
void bad_source_lane(unsigned source, const Meeting& meeting) {
  runner.abandon("a shuffle reads lane " + std::to_string(source) + ", which is not in its mask, at " +
                 str(meeting.place));
  runner.stop();
}

}  // namespace tandem::simt
