// run_parallel on threads of our own. The caller works too and takes whatever parts are left, so a helper that the
// system does not schedule costs nothing; helpers wait asleep, so they cost nothing between calls.

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>

#include "parallel.h"

namespace tandem::kernels::cpu {
namespace {

struct Region {
  void (*f)(void*, std::int64_t, std::int64_t);
  void* context;
  std::int64_t n, part;
  std::atomic<std::int64_t> next{0};
  int wanted;      ///< helpers that may still join
  int active = 0;  ///< helpers inside

  void work() {
    for (std::int64_t begin; (begin = next.fetch_add(part, std::memory_order_relaxed)) < n;) {
      f(context, begin, std::min(n, begin + part));
    }
  }
};

class Pool {
 public:
  void run(Region& region) {
    const int helpers = region.wanted;
    {
      const std::scoped_lock lock(mutex_);
      for (; threads_ < helpers; ++threads_) {
        // Detached, and the pool is never destroyed: a program may exit while helpers sleep.
        std::thread(&Pool::loop, this).detach();
      }
      regions_.push_back(&region);
    }
    for (int i = 0; i < helpers; ++i) ready_.notify_one();
    region.work();
    std::unique_lock lock(mutex_);
    std::erase(regions_, &region);
    done_.wait(lock, [&] { return region.active == 0; });
  }

 private:
  void loop() {
    std::unique_lock lock(mutex_);
    while (true) {
      ready_.wait(lock, [this] { return !regions_.empty(); });
      Region& region = *regions_.front();
      ++region.active;
      if (--region.wanted == 0) regions_.pop_front();
      lock.unlock();
      region.work();
      lock.lock();
      if (--region.active == 0) done_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable ready_, done_;
  std::deque<Region*> regions_;
  int threads_ = 0;
};

}  // namespace

void run_parallel(int threads, std::int64_t n, std::int64_t grain, void (*f)(void*, std::int64_t, std::int64_t),
                  void* context) {
  static Pool& pool = *new Pool;
  // A few parts per thread even out what the system takes away from one of them.
  const std::int64_t part = std::max(grain, (n + 4 * threads - 1) / (4 * threads));
  const std::int64_t parts = (n + part - 1) / part;
  Region region{f, context, n, part, {}, static_cast<int>(std::min<std::int64_t>(threads, parts)) - 1};
  if (region.wanted == 0) {
    region.work();
  } else {
    pool.run(region);
  }
}

}  // namespace tandem::kernels::cpu
