#pragma once
// What tests ask of simulated NCCL.

#include <chrono>

namespace tandem::simt {

/// Whether collectives that are issued from now on never end, as on a broken network: until their communicator is
/// aborted.
void hang_collectives(bool hang);

/// How long ncclCommInitRank waits for the other ranks before it fails; 30 seconds at first.
void set_join_timeout(std::chrono::milliseconds timeout);

}  // namespace tandem::simt
