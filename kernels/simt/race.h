#pragma once
// Who comes before whom in a launch.
//
// A thread's accesses come before another's if both are of one block and a barrier lies between, or both are of one
// warp and a __syncwarp of both. Between blocks, nothing orders them. Two accesses to the same bytes, one of them a
// write and not both atomic, must be ordered; else their order depends on timing.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "shadow.h"

namespace tandem::simt {

/// One access to (some bytes of) a word.
struct WordAccess {
  unsigned bytes;  ///< bits 0 to 3
  bool write, atomic;
  bool shared;        ///< in the memory of the block, which other blocks do not see
  std::int32_t code;  ///< where, as in Touch
};

/// An earlier access that an access races with.
struct Race {
  bool write;
  std::int32_t code;
};

/// The order of the launch that an OS thread runs.
class LaunchOrder {
 public:
  void start_launch();
  void start_block(std::size_t threads);
  /// All threads of the block have arrived.
  void barrier();
  /// The lanes of `mask` have met in a __syncwarp.
  void warp_barrier(std::size_t warp, unsigned mask);
  /// What follows is done by this thread of the block.
  void run(std::size_t thread);

  /// Remembers an access of the running thread, unless it races.
  std::optional<Race> access(WordTouches& word, const WordAccess& access);

 private:
  struct Known {
    std::uint64_t interval = 0;  // between two barriers of a block; 0: no access
    unsigned warp = 0, epoch = 0, bytes = 0;
    bool atomic = false, other_blocks = false;
    std::uint32_t lanes = 0;
    std::int32_t code = 0;
  };
  struct Warp {
    std::uint16_t epoch[32];      // of each lane: how many __syncwarp it has met, from 1
    std::uint16_t clock[32][32];  // of lane i: up to which epoch of lane j everything comes before
  };
  static Known load(const Touch& touch);
  static void store(Touch& touch, const Known& known);
  bool in_launch(std::uint64_t interval) const;
  bool clashes(const Known& earlier, const WordAccess& access) const;
  Known joined(const Known& earlier, const WordAccess& access) const;
  void next_interval();
  void reset(Warp& warp);

  std::uint64_t interval_ = 0, first_of_block_ = 0, first_of_launch_ = 0;
  std::vector<std::uint64_t> chunks_;  // of intervals, that this launch has used
  std::vector<Warp> warps_;
  bool synced_ = false;  // some warp is not as at the start
  unsigned warp_ = 0, lane_ = 0;
};

}  // namespace tandem::simt
