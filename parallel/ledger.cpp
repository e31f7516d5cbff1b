#include "ledger.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

namespace tandem::parallel {

const char* name_of(Phase phase) {
  constexpr const char* names[kPhaseCount] = {"check", "scatter",  "replicate", "forward", "gather",
                                              "loss",  "backward", "reduce",    "step"};
  return names[static_cast<int>(phase)];
}

void Ledger::add(Phase phase, Device device, const TimeMark& begin, const TimeMark& end, std::int64_t bytes,
                 std::vector<Device> sources, bool beside) {
  const std::scoped_lock lock(mutex_);
  open_.push_back({phase, device, begin, end, bytes, std::move(sources), beside});
  settle(false);
}

void Ledger::settle(bool wait) const {
  for (; !open_.empty() && (wait || open_.front().end.passed()); open_.pop_front()) {
    Open& o = open_.front();
    const LedgerEntry e{o.phase, o.device, o.begin.time_ns(), o.end.time_ns(), o.bytes, std::move(o.sources), o.beside};
    if (entries_.size() == capacity_) entries_.pop_front();
    entries_.push_back(e);
    Sum& sum = sums_[e.device][static_cast<std::size_t>(e.phase)];
    ++sum.calls;
    sum.bytes += e.bytes;
    sum.ns += e.end_ns - e.begin_ns;
    if (e.beside) {
      sum.beside_ns += e.end_ns - e.begin_ns;
      continue;
    }
    const auto [last, first_time] = last_end_.emplace(e.device, e.begin_ns);
    sum.wait_ns += std::max<std::int64_t>(0, e.begin_ns - last->second);
    last->second = std::max(last->second, e.end_ns);
  }
}

void Ledger::span(const char* name, Device device, const TimeMark& begin, const TimeMark& end, std::int64_t bytes) {
  for (int i = 0; i < kPhaseCount; ++i) {
    const auto phase = static_cast<Phase>(i);
    if (std::strcmp(name, name_of(phase)) == 0) add(phase, device, begin, end, bytes);
  }
}

void Ledger::clear() {
  const std::scoped_lock lock(mutex_);
  open_.clear();
  entries_.clear();
  sums_.clear();
  last_end_.clear();
}

void Ledger::note(const std::string& name, const std::string& text) {
  const std::scoped_lock lock(mutex_);
  notes_[name] = text;
}

std::vector<LedgerEntry> Ledger::entries() const {
  const std::scoped_lock lock(mutex_);
  settle(true);
  return {entries_.begin(), entries_.end()};
}

std::vector<PhaseTotal> Ledger::totals() const {
  const std::scoped_lock lock(mutex_);
  settle(true);
  std::vector<PhaseTotal> all;
  for (const auto& [device, sums] : sums_) {
    for (int i = 0; i < kPhaseCount; ++i) {
      const auto phase = static_cast<Phase>(i);
      const Sum& s = sums[static_cast<std::size_t>(i)];
      if (s.calls == 0) continue;
      const Sum& reduce = sums[static_cast<std::size_t>(Phase::Reduce)];
      const std::int64_t inside = phase == Phase::Backward ? reduce.ns - reduce.beside_ns : 0;
      all.push_back({phase, device, s.calls, s.bytes, static_cast<double>(s.ns - inside) * 1e-9,
                     static_cast<double>(s.wait_ns) * 1e-9});
    }
  }
  return all;
}

std::string Ledger::table() const {
  const std::vector<PhaseTotal> all = totals();
  std::map<Device, double> of_device;
  for (const PhaseTotal& t : all) of_device[t.device] += t.seconds;
  std::string text = fmt::format("{:<8} {:<10} {:>8} {:>14} {:>12} {:>12} {:>8} {:>7}\n", "device", "phase", "calls",
                                 "bytes", "ms", "wait ms", "GB/s", "share");
  Device last{DeviceType::CPU, -1};
  for (const PhaseTotal& t : all) {
    const std::string rate =
        t.bytes > 0 && t.seconds > 0 ? fmt::format("{:.2f}", static_cast<double>(t.bytes) / t.seconds * 1e-9) : "";
    text +=
        fmt::format("{:<8} {:<10} {:>8} {:>14} {:>12.3f} {:>12.3f} {:>8} {:>6.1f}%\n",
                    t.device == last ? "" : str(t.device), name_of(t.phase), t.calls, t.bytes, t.seconds * 1e3,
                    t.wait_seconds * 1e3, rate, of_device[t.device] > 0 ? 100 * t.seconds / of_device[t.device] : 0.0);
    last = t.device;
  }
  const std::scoped_lock lock(mutex_);
  for (const auto& [name, note] : notes_) text += fmt::format("{}: {}\n", name, note);
  return text;
}

std::string Ledger::timeline(int width) const {
  const std::vector<LedgerEntry> all = entries();
  // A step goes from one check to the next; entries are in the order of their ends.
  std::size_t last = all.size();
  while (last > 0 && all[last - 1].phase != Phase::Backward) --last;
  std::size_t first = last;
  while (first > 0 && all[first - 1].phase != Phase::Check) --first;
  if (first == 0 || last == 0) return {};
  --first;
  while (last < all.size() && all[last].phase != Phase::Check) ++last;
  const std::int64_t begin = all[first].begin_ns;
  std::int64_t end = begin + 1;
  for (std::size_t i = first; i < last; ++i) end = std::max(end, all[i].end_ns);

  std::map<Device, std::string> rows;
  const auto column = [&](std::int64_t t) {
    return static_cast<std::size_t>((t - begin) * (width - 1) / (end - begin));
  };
  const auto draw = [&](const LedgerEntry& e) {
    std::string& row = rows.try_emplace(e.device, static_cast<std::size_t>(width), '.').first->second;
    for (std::size_t x = column(e.begin_ns); x <= column(e.end_ns); ++x)
      row[x] = "csrfglBRS"[static_cast<int>(e.phase)];
  };
  // Reduce lies inside backward: it goes on top.
  for (std::size_t i = first; i < last; ++i) {
    if (all[i].phase != Phase::Reduce) draw(all[i]);
  }
  for (std::size_t i = first; i < last; ++i) {
    if (all[i].phase == Phase::Reduce) draw(all[i]);
  }
  std::string text;
  for (const auto& [device, row] : rows) text += fmt::format("{:<8}|{}|\n", str(device), row);
  const std::string length = fmt::format("{:.0f} us", static_cast<double>(end - begin) * 1e-3);
  return text + fmt::format("{:<9}0{:>{}}\n", "", length, width - 1);
}

namespace {

enum class Lane : std::uint8_t { Compute, Copies, Reductions };
constexpr int kLanes = 3;

Lane lane_of(Phase phase) {
  switch (phase) {
    case Phase::Scatter:
    case Phase::Replicate:
    case Phase::Gather: return Lane::Copies;
    case Phase::Reduce: return Lane::Reductions;
    default: return Lane::Compute;
  }
}

/// Writes events in Chrome's format; times are relative to an origin.
class TraceWriter {
 public:
  explicit TraceWriter(std::int64_t origin_ns) : origin_ns_(origin_ns) {}

  void name_row(int row, const std::string& name) {
    event(fmt::format(R"("ph":"M","pid":0,"tid":{},"name":"thread_name","args":{{"name":"{}"}})", row, name));
    event(fmt::format(R"("ph":"M","pid":0,"tid":{0},"name":"thread_sort_index","args":{{"sort_index":{0}}})", row));
  }
  void span(int row, const std::string& name, const LedgerEntry& e) {
    event(fmt::format(R"("ph":"X","pid":0,"tid":{},"name":"{}","ts":{:.3f},"dur":{:.3f},"args":{{"bytes":{}}})", row,
                      name, us(e.begin_ns), static_cast<double>(e.end_ns - e.begin_ns) * 1e-3, e.bytes));
  }
  void arrow(int from_row, int to_row, const LedgerEntry& e) {
    ++arrows_;
    event(fmt::format(R"("ph":"s","pid":0,"tid":{},"id":{},"name":"copy","cat":"copy","ts":{:.3f})", from_row, arrows_,
                      us(e.begin_ns)));
    event(fmt::format(R"("ph":"f","bp":"e","pid":0,"tid":{},"id":{},"name":"copy","cat":"copy","ts":{:.3f})", to_row,
                      arrows_, us(e.end_ns)));
  }
  std::string text() const {
    return R"({"displayTimeUnit":"ms","traceEvents":[
{"ph":"M","pid":0,"name":"process_name","args":{"name":"tandem"}})" +
           events_ + "\n]}\n";
  }

 private:
  double us(std::int64_t ns) const { return static_cast<double>(ns - origin_ns_) * 1e-3; }
  void event(const std::string& fields) { events_ += ",\n{" + fields + "}"; }

  std::int64_t origin_ns_;
  std::string events_;
  int arrows_ = 0;
};

}  // namespace

std::string Ledger::chrome_trace() const {
  const std::vector<LedgerEntry> all = entries();
  std::map<Device, int> order;
  for (const LedgerEntry& e : all) {
    order.emplace(e.device, 0);
    for (const Device source : e.sources) order.emplace(source, 0);
  }
  int next = 0;
  for (auto& [device, number] : order) number = next++;
  const auto row = [&](Device device, Lane lane) { return order.at(device) * kLanes + static_cast<int>(lane); };

  TraceWriter trace(all.empty() ? 0 : all.front().begin_ns);
  for (const auto& [device, number] : order) {
    trace.name_row(row(device, Lane::Compute), str(device));
    trace.name_row(row(device, Lane::Copies), str(device) + " copies");
    trace.name_row(row(device, Lane::Reductions), str(device) + " reductions");
  }
  for (const LedgerEntry& e : all) {
    const int here = row(e.device, lane_of(e.phase));
    trace.span(here, name_of(e.phase), e);
    for (const Device source : e.sources) {
      // An arrow starts at a span of the device that sends.
      const int there = row(source, Lane::Copies);
      trace.span(there, fmt::format("{} for {}", name_of(e.phase), str(e.device)), e);
      trace.arrow(there, here, e);
    }
  }
  return trace.text();
}

}  // namespace tandem::parallel
