#include "parallel_apply.h"

#include <fmt/format.h>

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <set>

#include "../engine/context.h"
#include "../engine/runtime.h"
#include "rendezvous.h"

namespace tandem::parallel {
namespace {

// Calls queue their jobs one after another: replicas that wait for each other could else do so in a circle.
std::mutex queueing;

Context replica_context(const Context& caller, ReplicaExchange* exchange, std::size_t i, std::size_t n, Device device) {
  Context c = caller;
  c.exchange = exchange;
  c.replica = static_cast<int>(i);
  c.replicas = static_cast<int>(n);
  c.device = device;
  c.threads = std::max(1, num_threads() / static_cast<int>(n));
  return c;
}

std::string what_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& e) {
    return e.what();
  } catch (...) {
    return "an exception that is no std::exception";
  }
}

/// Leaves failures out that only tell of another one.
void drop_consequences(std::vector<std::exception_ptr>& errors) {
  const auto is_cause = [](const std::exception_ptr& error) {
    if (!error) return false;
    try {
      std::rethrow_exception(error);
    } catch (const ReplicaEnded&) {
      return false;
    } catch (...) {
      return true;
    }
  };
  if (std::none_of(errors.begin(), errors.end(), is_cause)) return;
  for (std::exception_ptr& error : errors) {
    if (!is_cause(error)) error = nullptr;
  }
}

void rethrow_first(const std::vector<std::exception_ptr>& errors, const std::vector<Device>& devices) {
  const auto first = std::find_if(errors.begin(), errors.end(), [](const auto& e) { return e != nullptr; });
  if (first == errors.end()) return;
  const auto i = static_cast<std::size_t>(first - errors.begin());
  std::string text = fmt::format("replica {} of {} on {}: {}", i, errors.size(), str(devices[i]), what_of(*first));
  for (std::size_t k = i + 1; k < errors.size(); ++k) {
    if (errors[k]) text += fmt::format("; replica {} on {} failed too: {}", k, str(devices[k]), what_of(errors[k]));
  }
  try {
    std::rethrow_exception(*first);
  } catch (...) {
    std::throw_with_nested(ReplicaError(text, i, devices[i]));
  }
}

}  // namespace

void run_on_devices(const std::vector<Device>& devices, const std::function<void(std::size_t)>& job, bool exchange) {
  const std::size_t n = devices.size();
  const bool at_once = n > 1 && !Worker::current();
  static NoExchange none(
      "replicas that run one after another, in a worker or on one device, cannot wait for each other");
  std::optional<Rendezvous> rendezvous;
  ReplicaExchange* meeting = nullptr;
  if (exchange && n > 1) meeting = &none;
  if (meeting && at_once && std::set(devices.begin(), devices.end()).size() == n) {
    meeting = &rendezvous.emplace(devices);
  }
  std::vector<std::exception_ptr> errors(n);
  const Context caller = context();
  const auto run = [&](std::size_t i) {
    const ContextGuard guard(replica_context(caller, meeting, i, n, devices[i]));
    try {
      job(i);
    } catch (...) {
      errors[i] = std::current_exception();
    }
    if (rendezvous) rendezvous->leave(errors[i] != nullptr);
  };
  if (!at_once) {
    for (std::size_t i = 0; i < n; ++i) run(i);
  } else {
    std::mutex mutex;
    std::condition_variable done;
    std::size_t left = n;
    {
      const std::scoped_lock lock(queueing);
      for (std::size_t i = 0; i < n; ++i) {
        device_state(devices[i]).worker.submit([&, i] {
          run(i);
          // Notified with the lock held: the waiter's variables may be gone right after.
          const std::scoped_lock ending(mutex);
          if (--left == 0) done.notify_one();
        });
      }
    }
    std::unique_lock lock(mutex);
    done.wait(lock, [&] { return left == 0; });
  }
  drop_consequences(errors);
  rethrow_first(errors, devices);
}

ReplicaInfo current_replica() {
  const Context& c = context();
  return {static_cast<std::size_t>(c.replica), static_cast<std::size_t>(c.replicas), c.device};
}

}  // namespace tandem::parallel
