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

Context replica_context(const Context& common, ReplicaExchange* exchange, std::size_t i, std::size_t n, Device device) {
  Context c = common;
  c.exchange = exchange;
  c.replica = static_cast<int>(i);
  c.replicas = static_cast<int>(n);
  c.device = device;
  if (c.default_device.type == device.type) c.default_device = device;
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

struct Failure {
  std::exception_ptr error;
  FailurePlace place;
};

/// Leaves failures out that only tell of another one.
void drop_consequences(std::vector<Failure>& failures) {
  const auto is_cause = [](const Failure& failure) {
    if (!failure.error) return false;
    try {
      std::rethrow_exception(failure.error);
    } catch (const ReplicaEnded&) {
      return false;
    } catch (...) {
      return true;
    }
  };
  if (std::none_of(failures.begin(), failures.end(), is_cause)) return;
  for (Failure& failure : failures) {
    if (!is_cause(failure)) failure = {};
  }
}

void rethrow_first(const std::vector<Failure>& failures, const std::vector<Device>& devices) {
  const auto first =
      std::find_if(failures.begin(), failures.end(), [](const Failure& f) { return f.error != nullptr; });
  if (first == failures.end()) return;
  const auto i = static_cast<std::size_t>(first - failures.begin());
  std::string text = fmt::format("replica {} of {} on {}{}: {}", i, failures.size(), str(devices[i]), first->place.text,
                                 what_of(first->error));
  for (std::size_t k = i + 1; k < failures.size(); ++k) {
    if (!failures[k].error) continue;
    text += fmt::format("; replica {} on {} failed too{}: {}", k, str(devices[k]), failures[k].place.text,
                        what_of(failures[k].error));
  }
  try {
    std::rethrow_exception(first->error);
  } catch (...) {
    std::throw_with_nested(ReplicaError(text, i, devices[i], first->place.module));
  }
}

}  // namespace

void run_on_devices(const std::vector<Device>& devices, const std::function<void(std::size_t)>& job, bool exchange,
                    const PlaceOf& place) {
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
  std::vector<Failure> failures(n);
  // The caller's number of threads; in a worker num_threads() is another.
  Context common = context();
  common.threads = std::max(1, num_threads() / static_cast<int>(n));
  const auto run = [&](std::size_t i) {
    Context own = replica_context(common, meeting, i, n, devices[i]);
    FailedCall failed;
    own.failed = &failed;
    const ContextGuard guard(own);
    try {
      job(i);
    } catch (...) {
      failures[i].error = std::current_exception();
      const bool in_module = failed.error == failures[i].error;
      if (place) failures[i].place = place(i, in_module ? failed.callee : nullptr);
    }
    if (rendezvous) rendezvous->leave(failures[i].error != nullptr);
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
  drop_consequences(failures);
  rethrow_first(failures, devices);
}

FailurePlace detail::place_in(nn::Module* module, const void* callee,
                              const std::vector<std::pair<std::string, Tensor>>& inputs) {
  FailurePlace place;
  if (module) {
    for (const auto& [name, m] : module->named_modules()) {
      if (m != callee) continue;
      place.module = name;
      place.text =
          name.empty() ? fmt::format(", in {}", m->type_name()) : fmt::format(", in {} ({})", name, m->type_name());
      break;
    }
  }
  for (const auto& [path, t] : inputs) place.text += fmt::format(", {} {}", path, describe(t));
  return place;
}

bool inside_replica() { return context().failed != nullptr; }

ReplicaInfo current_replica() {
  const Context& c = context();
  return {static_cast<std::size_t>(c.replica), static_cast<std::size_t>(c.replicas), c.device};
}

}  // namespace tandem::parallel
