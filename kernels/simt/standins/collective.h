#pragma once
// One collective of simulated NCCL: where the ranks of a communicator meet, and what they compute.

#include <nccl.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "standin.h"

namespace tandem::simt {

enum class CollectiveKind { Broadcast, Reduce, AllReduce, ReduceScatter, AllGather };

/// What all ranks must agree on. `count` is what the caller gave.
struct CollectiveCall {
  CollectiveKind kind;
  std::size_t count;
  ncclDataType_t type;
  ncclRedOp_t op;
  int root;

  const char* name() const;
  std::string text() const;
  bool operator==(const CollectiveCall&) const = default;

  std::size_t element() const;  ///< bytes; 0 for types that the stand-in refuses
  std::size_t send_bytes(int ranks) const;
  std::size_t receive_bytes(int ranks) const;
  bool reads(int rank) const;   ///< whether that rank's send buffer is read
  bool writes(int rank) const;  ///< whether that rank's receive buffer is written
  /// Bytes from the start of the longer buffer to where the shorter one lies if the call is in place.
  std::size_t in_place_offset(int rank) const;
};

struct CollectivePart {
  const void* send = nullptr;
  void* receive = nullptr;
};

/// Computes the collective. Sums are in the order of ranks.
void run_collective(const CollectiveCall& call, const std::vector<CollectivePart>& parts);

}  // namespace tandem::simt
