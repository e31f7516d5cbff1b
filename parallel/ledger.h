#pragma once
// The ledger: what each device did, when, and how many bytes that moved.

#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "../engine/context.h"
#include "../engine/device.h"

namespace tandem::parallel {

/// The parts of a data-parallel step, in their order. Check looks over the arguments and the module; Reduce lies inside
/// Backward.
enum class Phase : std::uint8_t { Check, Scatter, Replicate, Forward, Gather, Loss, Backward, Reduce, Step };
inline constexpr int kPhaseCount = 9;
const char* name_of(Phase phase);

struct LedgerEntry {
  Phase phase;
  Device device;
  std::int64_t begin_ns;  ///< of the steady clock
  std::int64_t end_ns;
  std::int64_t bytes;  ///< that crossed from one device to another, 0 for work inside a device
};

/// Sums over all entries of one phase on one device.
struct PhaseTotal {
  Phase phase;
  Device device;
  std::int64_t calls = 0;
  std::int64_t bytes = 0;
  double seconds = 0;  ///< Backward: without the Reduce inside it
};

/// Times are the devices' own: work on a CUDA device is timed where it runs, not where it is queued. Reading the ledger
/// waits for the devices to finish what it has entered.
///
/// Thread-safe. Sums cover everything since clear(); single entries are kept for the last `capacity` of them.
class Ledger : public Observer {
 public:
  explicit Ledger(std::size_t capacity = 1 << 16) : capacity_(capacity) {}

  void add(Phase phase, Device device, const TimeMark& begin, const TimeMark& end, std::int64_t bytes);
  /// From backward().
  void span(const char* name, Device device, const TimeMark& begin, const TimeMark& end, std::int64_t bytes) override;
  void clear();
  /// A fact that the table ends with, such as the transport. One per name; clear() keeps them.
  void note(const std::string& name, const std::string& text);

  std::vector<LedgerEntry> entries() const;
  /// By device, then phase.
  std::vector<PhaseTotal> totals() const;
  /// The totals as a table: device, phase, calls, bytes, milliseconds, GB/s (1 GB = 1e9 bytes), share of the device's
  /// time.
  std::string table() const;
  /// The last step that ran backward, as text: a row per device, `width` columns of time. Each column shows the phase
  /// that it is in: its first letter, B for backward, R for reduce, S for step.
  std::string timeline(int width = 72) const;
  /// The entries in the Chrome trace event format, which ui.perfetto.dev and chrome://tracing open: a row per device.
  std::string chrome_trace() const;

 private:
  struct Sum {
    std::int64_t calls = 0, bytes = 0, ns = 0;
  };
  struct Open {
    Phase phase;
    Device device;
    TimeMark begin, end;
    std::int64_t bytes;
  };
  /// Enters what devices have finished, in order; or all, and waits for it. With the lock held.
  void settle(bool wait) const;

  mutable std::mutex mutex_;
  std::size_t capacity_;
  mutable std::deque<Open> open_;
  mutable std::deque<LedgerEntry> entries_;
  mutable std::map<Device, std::array<Sum, kPhaseCount>> sums_;
  std::map<std::string, std::string> notes_;
};

/// Enters a phase of the calling thread into a ledger, from construction to destruction. Check is timed on the host.
class PhaseScope {
 public:
  PhaseScope(Ledger* ledger, Phase phase, Device device, std::int64_t bytes = 0)
      : ledger_(ledger), phase_(phase), device_(device), bytes_(bytes), begin_(mark()) {}
  ~PhaseScope() {
    if (ledger_) ledger_->add(phase_, device_, begin_, mark(), bytes_);
  }
  PhaseScope(const PhaseScope&) = delete;
  PhaseScope& operator=(const PhaseScope&) = delete;
  void add_bytes(std::int64_t bytes) { bytes_ += bytes; }

 private:
  TimeMark mark() const {
    if (!ledger_) return TimeMark(0);
    return TimeMark(phase_ == Phase::Check ? cpu() : device_);
  }

  Ledger* ledger_;
  Phase phase_;
  Device device_;
  std::int64_t bytes_;
  TimeMark begin_;
};

}  // namespace tandem::parallel
