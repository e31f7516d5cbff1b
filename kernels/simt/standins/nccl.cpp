// NCCL on simulated GPUs. The ranks of a communicator meet once per collective, in the order of their calls; the last
// rank whose stream gets there computes for all, and then all streams go on.
//
// Where real ranks would hang or read garbage, because they disagree on a call, the call is refused, reported, and the
// communicator has failed.

#include <nccl.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstring>
#include <map>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "../control.h"
#include "../failures.h"
#include "../scheduler.h"
#include "collective.h"
#include "standin.h"

namespace simt = tandem::simt;
using simt::CollectiveCall;
using simt::CollectiveKind;
using simt::CollectivePart;

namespace {

std::atomic<bool> hanging{false}, paused{false};
std::atomic<std::chrono::milliseconds> join_timeout{std::chrono::seconds(30)};

/// One collective. Guarded by the world's mutex.
struct Meeting {
  CollectiveCall call{};
  std::vector<CollectivePart> parts;
  int calls = 0, arrivals = 0;
  bool never_ends = false;
  bool done = false;
  std::thread::id thread;  // of the first call
  std::uint64_t group = 0;
  std::shared_ptr<simt::Crossing> order = std::make_shared<simt::Crossing>();

  void run_if_complete(int ranks) {
    if (arrivals < ranks || done || never_ends || paused) return;
    run_collective(call, parts);
    done = true;
  }
};

/// What the ranks of one communicator share.
struct World {
  explicit World(int count) : ranks(count), devices(static_cast<std::size_t>(count), -1) {}

  std::mutex mutex;
  std::condition_variable joined;
  const int ranks;
  std::vector<int> devices;  // of the ranks that have joined, else -1
  std::map<std::uint64_t, std::shared_ptr<Meeting>> meetings;
  ncclResult_t state = ncclSuccess;
  std::string why;

  /// With the mutex locked.
  bool is_complete() const { return std::ranges::find(devices, -1) == devices.end(); }
  void fail(ncclResult_t result, const std::string& text) {
    if (state != ncclSuccess) return;
    state = result;
    why = text;
    for (auto& [number, meeting] : meetings) meeting->done = true;
  }
};

}  // namespace

struct ncclComm {
  std::shared_ptr<World> world;
  int rank = 0, device = 0;
  std::uint64_t next = 0;  // number of the next collective
  std::shared_ptr<std::atomic<bool>> aborted = std::make_shared<std::atomic<bool>>(false);
  std::vector<std::pair<cudaStream_t, std::shared_ptr<Meeting>>> running;
};

namespace {

simt::Handles<ncclComm> comms;

/// Worlds that are still being joined, by the number in their unique id.
std::mutex worlds_mutex;
std::map<std::uint64_t, std::shared_ptr<World>> worlds;
std::atomic<std::uint64_t> next_world{1};
constexpr char kIdMark[8] = "tandem";

thread_local std::string last_error;

ncclResult_t refuse(ncclResult_t result, const char* function, const std::string& why) {
  last_error = why;
  simt::report_refusal(function, why);
  return result;
}

/// A call that waits for the end of its group.
struct Pending {
  ncclComm_t comm;
  CollectiveCall call;
  CollectivePart part;
  cudaStream_t stream;
};
struct Joining {
  ncclComm_t* out;
  std::shared_ptr<World> world;
  int rank, device;
};
struct Group {
  int depth = 0;
  ncclResult_t result = ncclSuccess;
  std::vector<Pending> calls;
  std::vector<Joining> joins;
};
thread_local Group group;
std::atomic<std::uint64_t> next_group{1};

/// Queues a rank's part of a collective.
ncclResult_t issue(const Pending& p, std::uint64_t group_number) {
  ncclComm& comm = *p.comm;
  const std::shared_ptr<World> world = comm.world;
  const std::string who = "rank " + std::to_string(comm.rank) + ": ";
  std::shared_ptr<Meeting> meeting;
  ncclResult_t failure = ncclSuccess;
  std::string fault;
  {
    const std::lock_guard lock(world->mutex);
    if (world->state != ncclSuccess) return refuse(world->state, p.call.name(), who + "failed before: " + world->why);
    const std::uint64_t number = comm.next++;
    std::shared_ptr<Meeting>& slot = world->meetings[number];
    if (slot == nullptr) {
      slot = std::make_shared<Meeting>();
      slot->call = p.call;
      slot->parts.resize(static_cast<std::size_t>(world->ranks));
      slot->never_ends = hanging;
      slot->thread = std::this_thread::get_id();
      slot->group = group_number;
    } else if (!(slot->call == p.call)) {
      failure = ncclInvalidUsage;
      fault = who + p.call.text() + ", where an earlier rank calls " + slot->call.text();
    } else if (slot->thread == std::this_thread::get_id() && (group_number == 0 || slot->group != group_number)) {
      failure = ncclInvalidUsage;
      fault = who + "one thread calls for several ranks, not within one group";
    }
    if (const int code = simt::take_failure(simt::Call::Collective); code != 0 && failure == ncclSuccess) {
      failure = static_cast<ncclResult_t>(code);
      fault = who + p.call.text() + " fails on demand";
    }
    if (failure != ncclSuccess) {
      world->fail(failure, fault);
    } else {
      meeting = slot;
      std::erase_if(comm.running, [](const auto& entry) { return entry.second->done; });
      comm.running.emplace_back(p.stream, meeting);
      meeting->parts[static_cast<std::size_t>(comm.rank)] = p.part;
      if (++meeting->calls == world->ranks) world->meetings.erase(number);
    }
  }
  if (failure != ncclSuccess) {
    simt::wake();  // not while the world is locked: streams lock it when they look whether they may go on
    return refuse(failure, p.call.name(), fault);
  }

  std::vector<simt::Bytes> reads, writes;
  if (p.call.reads(comm.rank)) reads.push_back({p.part.send, p.call.send_bytes(world->ranks)});
  if (p.call.writes(comm.rank)) writes.push_back({p.part.receive, p.call.receive_bytes(world->ranks)});
  const cudaError_t queued = simt::queue_meeting(
      p.stream, p.call.name(), meeting->order, reads, writes,
      [world, meeting, aborted = comm.aborted] {
        const std::lock_guard lock(world->mutex);
        if (*aborted) return;
        ++meeting->arrivals;
        meeting->run_if_complete(world->ranks);
      },
      [world, meeting, aborted = comm.aborted] {
        const std::lock_guard lock(world->mutex);
        if (!*aborted) meeting->run_if_complete(world->ranks);
        return meeting->done || *aborted;
      });
  return queued == cudaSuccess ? ncclSuccess : ncclUnhandledCudaError;
}

/// Checks the arguments of a collective, and issues it, or leaves it to the end of the group.
ncclResult_t collective(const CollectiveCall& call, const void* send, void* receive, ncclComm_t comm,
                        cudaStream_t stream) {
  const char* function = call.name();
  const auto refused = [&](ncclResult_t result, const std::string& why) {
    if (group.depth > 0) group.result = result;
    return refuse(result, function, why);
  };
  if (!comms.has(comm)) return refused(ncclInvalidArgument, "no such communicator");
  const int ranks = comm->world->ranks, rank = comm->rank;
  if (call.root < 0 || call.root >= ranks) return refused(ncclInvalidArgument, "root " + std::to_string(call.root));
  if (call.element() == 0) return refused(ncclInvalidArgument, "data type " + std::to_string(call.type));
  if (call.op < ncclSum || call.op > ncclMin) {
    return refused(ncclInvalidArgument, "operation " + std::to_string(call.op));
  }
  const std::size_t send_bytes = call.send_bytes(ranks), receive_bytes = call.receive_bytes(ranks);
  std::string fault = simt::stream_fault(stream, comm->device);
  if (fault.empty() && call.reads(rank)) {
    fault = simt::pointer_fault("the send buffer", send, send_bytes, call.element(), comm->device);
  }
  if (fault.empty() && call.writes(rank)) {
    fault = simt::pointer_fault("the receive buffer", receive, receive_bytes, call.element(), comm->device);
  }
  const bool sends_more = send_bytes > receive_bytes;
  const char* longer = static_cast<const char*>(sends_more ? send : receive);
  const bool in_place = (sends_more ? receive : send) == longer + call.in_place_offset(rank);
  if (fault.empty() && !in_place && call.reads(rank) && call.writes(rank)) {
    fault = simt::overlap_fault("the send buffer", {send, send_bytes}, "the receive buffer", {receive, receive_bytes});
  }
  if (!fault.empty()) return refused(ncclInvalidArgument, "rank " + std::to_string(rank) + ": " + fault);
  const Pending pending{comm, call, {send, receive}, stream};
  if (group.depth == 0) return issue(pending, 0);
  group.calls.push_back(pending);
  return ncclSuccess;
}

/// Takes a rank's place, or says why not.
std::string take_place(World& world, int rank, int device) {
  const std::lock_guard lock(world.mutex);
  if (rank < 0 || rank >= world.ranks) return "rank " + std::to_string(rank) + " of " + std::to_string(world.ranks);
  if (world.devices[static_cast<std::size_t>(rank)] != -1) return "rank " + std::to_string(rank) + " joins twice";
  if (std::ranges::find(world.devices, device) != world.devices.end()) {
    return "two ranks are on device " + std::to_string(device);
  }
  world.devices[static_cast<std::size_t>(rank)] = device;
  world.joined.notify_all();
  return {};
}

ncclResult_t await_ranks(const Joining& join) {
  World& world = *join.world;
  {
    std::unique_lock lock(world.mutex);
    if (!world.joined.wait_for(lock, join_timeout.load(), [&] { return world.is_complete(); })) {
      return refuse(ncclSystemError, "ncclCommInitRank", "some ranks have not joined");
    }
  }
  ncclComm_t comm = comms.make();
  comm->world = join.world;
  comm->rank = join.rank;
  comm->device = join.device;
  *join.out = comm;
  return ncclSuccess;
}

}  // namespace

namespace tandem::simt {

void hang_collectives(bool hang) { hanging = hang; }
void pause_collectives(bool pause) {
  paused = pause;
  if (!pause) wake();
}
void set_join_timeout(std::chrono::milliseconds timeout) { join_timeout = timeout; }

}  // namespace tandem::simt

extern "C" {

const char* ncclGetErrorString(ncclResult_t result) {
  switch (result) {
    case ncclSuccess: return "no error";
    case ncclUnhandledCudaError: return "unhandled cuda error";
    case ncclSystemError: return "unhandled system error";
    case ncclInternalError: return "internal error";
    case ncclInvalidArgument: return "invalid argument";
    case ncclInvalidUsage: return "invalid usage";
    case ncclRemoteError: return "remote process exited or there was a network error";
    case ncclInProgress: return "operation in progress";
    default: return "unknown result code";
  }
}

const char* ncclGetLastError(ncclComm_t) { return last_error.c_str(); }

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  if (id == nullptr) return refuse(ncclInvalidArgument, "ncclGetUniqueId", "id is null");
  std::memset(id, 0, sizeof(*id));
  const std::uint64_t number = next_world++;
  std::memcpy(id->internal, kIdMark, sizeof(kIdMark));
  std::memcpy(id->internal + sizeof(kIdMark), &number, sizeof(number));
  return ncclSuccess;
}

ncclResult_t ncclCommInitRank(ncclComm_t* comm, int ranks, ncclUniqueId id, int rank) {
  const char* function = "ncclCommInitRank";
  if (comm == nullptr || ranks < 1) return refuse(ncclInvalidArgument, function, "no place, or no ranks");
  if (std::memcmp(id.internal, kIdMark, sizeof(kIdMark)) != 0) {
    return refuse(ncclInvalidArgument, function, "the id is not from ncclGetUniqueId");
  }
  Joining join{comm, nullptr, rank, 0};
  if (cudaGetDevice(&join.device) != cudaSuccess) return ncclUnhandledCudaError;
  std::uint64_t number = 0;
  std::memcpy(&number, id.internal + sizeof(kIdMark), sizeof(number));
  {
    const std::lock_guard lock(worlds_mutex);
    std::shared_ptr<World>& world = worlds[number];
    if (world == nullptr) world = std::make_shared<World>(ranks);
    join.world = world;
  }
  if (join.world->ranks != ranks) {
    return refuse(ncclInvalidArgument, function, "the ranks disagree on their number");
  }
  if (const std::string fault = take_place(*join.world, rank, join.device); !fault.empty()) {
    return refuse(ncclInvalidUsage, function, fault);
  }
  {
    const std::scoped_lock lock(worlds_mutex, join.world->mutex);
    if (join.world->is_complete()) worlds.erase(number);
  }
  if (group.depth == 0) return await_ranks(join);
  group.joins.push_back(join);
  return ncclSuccess;
}

ncclResult_t ncclCommInitAll(ncclComm_t* out, int count, const int* devices) {
  const char* function = "ncclCommInitAll";
  int present = 0;
  if (cudaGetDeviceCount(&present) != cudaSuccess) return ncclUnhandledCudaError;
  if (out == nullptr || count < 1 || count > present) {
    return refuse(ncclInvalidArgument, function,
                  std::to_string(count) + " ranks on " + std::to_string(present) + " devices");
  }
  const auto world = std::make_shared<World>(count);
  for (int rank = 0; rank < count; ++rank) {
    const int device = devices == nullptr ? rank : devices[rank];
    if (device < 0 || device >= present) {
      return refuse(ncclUnhandledCudaError, function, "device " + std::to_string(device));
    }
    if (const std::string fault = take_place(*world, rank, device); !fault.empty()) {
      return refuse(ncclInvalidUsage, function, fault);
    }
  }
  for (int rank = 0; rank < count; ++rank) {
    await_ranks({&out[rank], world, rank, world->devices[static_cast<std::size_t>(rank)]});
  }
  return ncclSuccess;
}

ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  if (!comms.has(comm)) return refuse(ncclInvalidArgument, "ncclCommDestroy", "no such communicator");
  {
    std::unique_lock lock(comm->world->mutex);
    for (const auto& [stream, meeting] : comm->running) {
      if (meeting->done) continue;
      lock.unlock();
      cudaStreamSynchronize(stream);
      lock.lock();
    }
  }
  comms.destroy(comm);
  return ncclSuccess;
}

ncclResult_t ncclCommAbort(ncclComm_t comm) {
  if (!comms.has(comm)) return refuse(ncclInvalidArgument, "ncclCommAbort", "no such communicator");
  *comm->aborted = true;
  simt::wake();
  comms.destroy(comm);
  return ncclSuccess;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* error) {
  if (!comms.has(comm) || error == nullptr) {
    return refuse(ncclInvalidArgument, "ncclCommGetAsyncError", "no such communicator, or no place");
  }
  const std::lock_guard lock(comm->world->mutex);
  *error = comm->world->state;
  if (*error != ncclSuccess) last_error = comm->world->why;
  return ncclSuccess;
}

ncclResult_t ncclCommCount(const ncclComm_t comm, int* count) {
  if (!comms.has(comm) || count == nullptr) return refuse(ncclInvalidArgument, "ncclCommCount", "no such communicator");
  *count = comm->world->ranks;
  return ncclSuccess;
}

ncclResult_t ncclCommCuDevice(const ncclComm_t comm, int* device) {
  if (!comms.has(comm) || device == nullptr) {
    return refuse(ncclInvalidArgument, "ncclCommCuDevice", "no such communicator");
  }
  *device = comm->device;
  return ncclSuccess;
}

ncclResult_t ncclCommUserRank(const ncclComm_t comm, int* rank) {
  if (!comms.has(comm) || rank == nullptr) {
    return refuse(ncclInvalidArgument, "ncclCommUserRank", "no such communicator");
  }
  *rank = comm->rank;
  return ncclSuccess;
}

ncclResult_t ncclGroupStart() {
  ++group.depth;
  return ncclSuccess;
}

ncclResult_t ncclGroupEnd() {
  if (group.depth == 0) return refuse(ncclInvalidUsage, "ncclGroupEnd", "no group was started");
  if (--group.depth > 0) return ncclSuccess;
  const Group ended = std::exchange(group, {});
  ncclResult_t result = ended.result;
  for (const Joining& join : ended.joins) {
    const ncclResult_t joined = await_ranks(join);
    if (result == ncclSuccess) result = joined;
  }
  if (result != ncclSuccess) return result;
  const std::uint64_t number = next_group++;
  for (const Pending& call : ended.calls) {
    const ncclResult_t issued = issue(call, number);
    if (result == ncclSuccess) result = issued;
  }
  return result;
}

ncclResult_t ncclBroadcast(const void* send, void* receive, size_t count, ncclDataType_t type, int root,
                           ncclComm_t comm, cudaStream_t stream) {
  return collective({CollectiveKind::Broadcast, count, type, ncclSum, root}, send, receive, comm, stream);
}

ncclResult_t ncclReduce(const void* send, void* receive, size_t count, ncclDataType_t type, ncclRedOp_t op, int root,
                        ncclComm_t comm, cudaStream_t stream) {
  return collective({CollectiveKind::Reduce, count, type, op, root}, send, receive, comm, stream);
}

ncclResult_t ncclAllReduce(const void* send, void* receive, size_t count, ncclDataType_t type, ncclRedOp_t op,
                           ncclComm_t comm, cudaStream_t stream) {
  return collective({CollectiveKind::AllReduce, count, type, op, 0}, send, receive, comm, stream);
}

ncclResult_t ncclReduceScatter(const void* send, void* receive, size_t receive_count, ncclDataType_t type,
                               ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
  return collective({CollectiveKind::ReduceScatter, receive_count, type, op, 0}, send, receive, comm, stream);
}

ncclResult_t ncclAllGather(const void* send, void* receive, size_t send_count, ncclDataType_t type, ncclComm_t comm,
                           cudaStream_t stream) {
  return collective({CollectiveKind::AllGather, send_count, type, ncclSum, 0}, send, receive, comm, stream);
}

}  // extern "C"
