#include "race.h"

#include <algorithm>
#include <atomic>
#include <cstring>

namespace tandem::simt {
namespace {

// Intervals have numbers that no two OS threads share: each takes chunks of them.
constexpr unsigned kChunkBits = 16;
std::atomic<std::uint64_t> next_chunk{1};

constexpr unsigned kSeveralWarps = 63;
constexpr unsigned kMaxEpoch = (1U << 12) - 1;

constexpr auto relaxed = std::memory_order_relaxed;

}  // namespace

// 40 bits of interval, 6 of warp, 12 of epoch, 4 of bytes, then atomic and other_blocks.
LaunchOrder::Known LaunchOrder::load(const Touch& touch) {
  const std::uint64_t who = touch.who.load(relaxed);
  Known known;
  known.interval = who >> 24;
  known.warp = static_cast<unsigned>(who >> 18 & 63);
  known.epoch = static_cast<unsigned>(who >> 6 & kMaxEpoch);
  known.bytes = static_cast<unsigned>(who >> 2 & 15);
  known.atomic = (who & 2) != 0;
  known.other_blocks = (who & 1) != 0;
  known.lanes = touch.lanes.load(relaxed);
  known.code = touch.code.load(relaxed);
  return known;
}

void LaunchOrder::store(Touch& touch, const Known& known) {
  touch.who.store(known.interval << 24 | std::uint64_t{known.warp} << 18 | std::uint64_t{known.epoch} << 6 |
                      known.bytes << 2 | (known.atomic ? 2U : 0U) | (known.other_blocks ? 1U : 0U),
                  relaxed);
  touch.lanes.store(known.lanes, relaxed);
  touch.code.store(known.code, relaxed);
}

void LaunchOrder::next_interval() {
  ++interval_;
  if (interval_ >> kChunkBits == chunks_.back()) return;
  chunks_.push_back(next_chunk.fetch_add(1));
  interval_ = chunks_.back() << kChunkBits;
}

void LaunchOrder::start_launch() {
  if (chunks_.empty()) {
    chunks_.push_back(next_chunk.fetch_add(1));
    interval_ = chunks_.back() << kChunkBits;
  }
  chunks_.assign(1, chunks_.back());
  next_interval();
  first_of_launch_ = interval_;
}

void LaunchOrder::start_block(std::size_t threads) {
  next_interval();
  first_of_block_ = interval_;
  const std::size_t warps = (threads + 31) / 32;
  if (warps_.size() == warps && !synced_) return;
  warps_.resize(warps);
  for (Warp& warp : warps_) reset(warp);
  synced_ = false;
}

void LaunchOrder::reset(Warp& warp) {
  std::memset(&warp, 0, sizeof warp);
  std::fill(std::begin(warp.epoch), std::end(warp.epoch), std::uint16_t{1});
}

void LaunchOrder::barrier() { next_interval(); }

void LaunchOrder::warp_barrier(std::size_t warp, unsigned mask) {
  Warp& w = warps_[warp];
  synced_ = true;
  std::uint16_t epoch = 0;
  std::uint16_t known[32] = {};
  for (unsigned i = 0; i < 32; ++i) {
    if ((mask >> i & 1U) == 0) continue;
    epoch = std::max(epoch, w.epoch[i]);
    for (unsigned j = 0; j < 32; ++j) known[j] = std::max(known[j], w.clock[i][j]);
  }
  for (unsigned i = 0; i < 32; ++i) {
    if ((mask >> i & 1U) != 0) known[i] = epoch;
  }
  for (unsigned i = 0; i < 32; ++i) {
    if ((mask >> i & 1U) == 0) continue;
    std::copy(std::begin(known), std::end(known), std::begin(w.clock[i]));
    w.epoch[i] = static_cast<std::uint16_t>(std::min<unsigned>(epoch + 1U, kMaxEpoch));
  }
}

void LaunchOrder::run(std::size_t thread) {
  warp_ = static_cast<unsigned>(thread / 32);
  lane_ = static_cast<unsigned>(thread % 32);
}

bool LaunchOrder::in_launch(std::uint64_t interval) const {
  if (interval < first_of_launch_ || interval > interval_) return false;
  return chunks_.size() == 1 || std::find(chunks_.begin(), chunks_.end(), interval >> kChunkBits) != chunks_.end();
}

bool LaunchOrder::clashes(const Known& earlier, const WordAccess& access) const {
  if ((earlier.bytes & access.bytes) == 0 || (earlier.atomic && access.atomic)) return false;
  if (!in_launch(earlier.interval)) return false;
  if (earlier.interval < first_of_block_ || earlier.other_blocks) return !access.shared;
  if (earlier.interval != interval_) return false;
  if (earlier.warp != warp_) return true;
  const std::uint16_t* clock = warps_[warp_].clock[lane_];
  for (std::uint32_t others = earlier.lanes & ~(1U << lane_); others != 0; others &= others - 1) {
    if (clock[__builtin_ctz(others)] < earlier.epoch) return true;
  }
  return false;
}

LaunchOrder::Known LaunchOrder::joined(const Known& earlier, const WordAccess& access) const {
  const unsigned epoch = warps_[warp_].epoch[lane_];
  Known now{interval_, warp_, epoch, access.bytes, access.atomic, false, 1U << lane_, access.code};
  if ((earlier.bytes & access.bytes) == 0 || !in_launch(earlier.interval)) return now;
  if (earlier.interval < first_of_block_) {
    now.other_blocks = !access.shared;
    return now;
  }
  now.other_blocks = earlier.other_blocks;
  if (earlier.interval != interval_) return now;
  if (earlier.warp != warp_) {
    now.warp = kSeveralWarps;
    now.code = earlier.code;
    now.atomic = now.atomic && earlier.atomic;
    return now;
  }
  // Of the earlier accesses, those that come before this one need no remembering.
  const std::uint16_t* clock = warps_[warp_].clock[lane_];
  std::uint32_t unordered = 0;
  for (std::uint32_t others = earlier.lanes & ~(1U << lane_); others != 0; others &= others - 1) {
    const auto lane = static_cast<unsigned>(__builtin_ctz(others));
    if (clock[lane] < earlier.epoch) unordered |= 1U << lane;
  }
  if (unordered != 0) {
    now.lanes |= unordered;
    now.code = earlier.code;
    now.epoch = std::max(now.epoch, earlier.epoch);
  }
  if (unordered != 0 || earlier.epoch == epoch) now.atomic = now.atomic && earlier.atomic;
  return now;
}

std::optional<Race> LaunchOrder::access(WordTouches& word, const WordAccess& access) {
  const Known write = load(word.write);
  if (clashes(write, access)) return Race{true, write.code};
  const Known read = load(word.read);
  if (!access.write) {
    store(word.read, joined(read, access));
    return {};
  }
  if (clashes(read, access)) return Race{false, read.code};
  store(word.write, joined(write, access));
  return {};
}

}  // namespace tandem::simt
