#pragma once
// The ledger: what each device did, when, and how many bytes that moved.

#include <algorithm>
#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "../engine/context.h"
#include "../engine/device.h"
#include "../engine/tensor.h"

namespace tandem::parallel {

/// The parts of a data-parallel step, in their order. Check looks over the arguments and the module; Reduce lies inside
/// Backward, or beside it.
enum class Phase : std::uint8_t { Check, Scatter, Replicate, Forward, Gather, Loss, Backward, Reduce, Step };
inline constexpr int kPhaseCount = 9;
const char* name_of(Phase phase);

struct LedgerEntry {
  Phase phase;
  Device device;
  std::int64_t begin_ns;  ///< of the steady clock
  std::int64_t end_ns;
  std::int64_t bytes;             ///< that crossed from one device to another, 0 for work inside a device
  std::vector<Device> sources{};  ///< the other devices that they came from
  bool beside = false;            ///< ran beside the device's other work, on a stream of its own
};

/// Sums over all entries of one phase on one device.
struct PhaseTotal {
  Phase phase;
  Device device;
  std::int64_t calls = 0;
  std::int64_t bytes = 0;
  double seconds = 0;       ///< Backward: without the Reduce inside it, unless that ran beside it
  double wait_seconds = 0;  ///< that the device had nothing to do before, since its last entry
};

/// Times are the devices' own: work on a CUDA device is timed where it runs, not where it is queued. Reading the ledger
/// waits for the devices to finish what it has entered.
///
/// Thread-safe. Sums cover everything since clear(); single entries are kept for the last `capacity` of them.
class Ledger : public Observer {
 public:
  explicit Ledger(std::size_t capacity = 1 << 16) : capacity_(capacity) {}

  void add(Phase phase, Device device, const TimeMark& begin, const TimeMark& end, std::int64_t bytes,
           std::vector<Device> sources = {}, bool beside = false);
  /// From backward().
  void span(const char* name, Device device, const TimeMark& begin, const TimeMark& end, std::int64_t bytes) override;
  void clear();
  /// A fact that the table ends with, such as the transport. One per name; clear() keeps them.
  void note(const std::string& name, const std::string& text);

  std::vector<LedgerEntry> entries() const;
  /// By device, then phase.
  std::vector<PhaseTotal> totals() const;
  /// The totals as a table: device, phase, calls, bytes, milliseconds of work, of waiting before it, GB/s (1 GB = 1e9
  /// bytes), share of the device's work. The notes follow.
  std::string table() const;
  /// The last step that ran backward, as text: a row per device, `width` columns of time. Each column shows the phase
  /// that it is in: its first letter, B for backward, R for reduce, S for step.
  std::string timeline(int width = 72) const;
  /// The entries in the Chrome trace event format, which ui.perfetto.dev and chrome://tracing open: for each device a
  /// row for computation, one for copies and one for reductions, and an arrow for what came from another device.
  std::string chrome_trace() const;

 private:
  struct Sum {
    std::int64_t calls = 0, bytes = 0, ns = 0, beside_ns = 0, wait_ns = 0;
  };
  struct Open {
    Phase phase;
    Device device;
    TimeMark begin, end;
    std::int64_t bytes;
    std::vector<Device> sources;
    bool beside;
  };
  /// Enters what devices have finished, in order; or all, and waits for it. With the lock held.
  void settle(bool wait) const;

  mutable std::mutex mutex_;
  std::size_t capacity_;
  mutable std::deque<Open> open_;
  mutable std::deque<LedgerEntry> entries_;
  mutable std::map<Device, std::array<Sum, kPhaseCount>> sums_;
  mutable std::map<Device, std::int64_t> last_end_;
  std::map<std::string, std::string> notes_;
};

/// Enters a phase of the calling thread into a ledger, from construction to destruction. Check is timed on the host.
class PhaseScope {
 public:
  PhaseScope(Ledger* ledger, Phase phase, Device device)
      : ledger_(ledger), phase_(phase), device_(device), begin_(mark()) {}
  ~PhaseScope() {
    if (!ledger_) return;
    ledger_->add(phase_, device_, begin_, end_ ? *end_ : mark(), bytes_, std::move(sources_), end_.has_value());
  }
  PhaseScope(const PhaseScope&) = delete;
  PhaseScope& operator=(const PhaseScope&) = delete;
  /// The phase reads t, which may be on another device.
  void reads(const Tensor& t) {
    if (!ledger_ || t.device() == device_) return;
    bytes_ += static_cast<std::int64_t>(t.nbytes());
    if (std::find(sources_.begin(), sources_.end(), t.device()) == sources_.end()) sources_.push_back(t.device());
  }
  /// It was from `begin` to `end`, beside what else the device had to do.
  void ran_beside(const TimeMark& begin, const TimeMark& end) {
    begin_ = begin;
    end_ = end;
  }

 private:
  TimeMark mark() const {
    if (!ledger_) return TimeMark(0);
    return TimeMark(phase_ == Phase::Check ? cpu() : device_);
  }

  Ledger* ledger_;
  Phase phase_;
  Device device_;
  std::int64_t bytes_ = 0;
  std::vector<Device> sources_;
  TimeMark begin_;
  std::optional<TimeMark> end_;  ///< of work beside the device's other work
};

}  // namespace tandem::parallel
