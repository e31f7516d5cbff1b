#include <nccl.h>

#include <atomic>
#include <string>
#include <vector>

#include "../error.h"
#include "libraries.h"
#include "nccl.h"
#include "queue.h"

namespace tandem::kernels::cuda {
namespace {

void check_nccl(ncclResult_t result, const char* function, ncclComm_t comm = nullptr) {
  if (result == ncclSuccess || result == ncclInProgress) return;
  std::string text = ncclGetErrorString(result);
  if (const char* detail = ncclGetLastError(comm); detail != nullptr && *detail != '\0') {
    text += std::string(": ") + detail;
  }
  throw_library_error(function, text.c_str(), static_cast<int>(result));
}

ncclDataType_t type_of(DType dtype) {
  switch (dtype) {
    case DType::Int32: return ncclInt32;
    case DType::Int64: return ncclInt64;
    case DType::Float32: return ncclFloat32;
    case DType::Float64: return ncclFloat64;
    default: return ncclUint8;
  }
}

ncclDataType_t summable_type_of(DType dtype) {
  if (dtype == DType::Bool) throw_library_error("NCCL", "no sum of bool", static_cast<int>(ncclInvalidArgument));
  return type_of(dtype);
}

}  // namespace

struct Communicator::Ranks {
  explicit Ranks(std::size_t count) : comms(count) {}

  ncclComm_t get(int rank) const {
    ncclComm_t comm = comms[static_cast<std::size_t>(rank)];
    if (comm == nullptr)
      throw_library_error("NCCL", "the communicator was aborted", static_cast<int>(ncclInvalidUsage));
    return comm;
  }

  std::vector<std::atomic<ncclComm_t>> comms;
};

bool nccl_available() { return true; }

Communicator::Communicator(std::span<const int> devices) : ranks_(std::make_unique<Ranks>(devices.size())) {
  const DeviceGuard guard(devices.front());
  std::vector<ncclComm_t> comms(devices.size());
  check_nccl(ncclCommInitAll(comms.data(), static_cast<int>(devices.size()), devices.data()), "ncclCommInitAll");
  for (std::size_t i = 0; i < comms.size(); ++i) ranks_->comms[i] = comms[i];
}

Communicator::~Communicator() {
  bool failed = false;
  for (ncclComm_t comm : ranks_->comms) {
    ncclResult_t state = ncclSuccess;
    failed |= comm != nullptr && (ncclCommGetAsyncError(comm, &state) != ncclSuccess || state != ncclSuccess);
  }
  if (failed) {
    abort();
    return;
  }
  for (ncclComm_t comm : ranks_->comms) {
    if (comm != nullptr) ncclCommDestroy(comm);
  }
}

int Communicator::size() const { return static_cast<int>(ranks_->comms.size()); }

void Communicator::broadcast(int rank, void* data, std::int64_t count, DType dtype, int root, cudaStream_t stream) {
  ncclComm_t comm = ranks_->get(rank);
  check_nccl(ncclBroadcast(data, data, static_cast<std::size_t>(count), type_of(dtype), root, comm, stream),
             "ncclBroadcast", comm);
}

void Communicator::reduce(int rank, const void* in, void* out, std::int64_t count, DType dtype, int root,
                          cudaStream_t stream) {
  ncclComm_t comm = ranks_->get(rank);
  check_nccl(ncclReduce(in, out, static_cast<std::size_t>(count), summable_type_of(dtype), ncclSum, root, comm, stream),
             "ncclReduce", comm);
}

void Communicator::all_reduce(int rank, const void* in, void* out, std::int64_t count, DType dtype,
                              cudaStream_t stream) {
  ncclComm_t comm = ranks_->get(rank);
  check_nccl(ncclAllReduce(in, out, static_cast<std::size_t>(count), summable_type_of(dtype), ncclSum, comm, stream),
             "ncclAllReduce", comm);
}

void Communicator::check_async() const {
  for (int rank = 0; rank < size(); ++rank) {
    ncclComm_t comm = ranks_->get(rank);
    ncclResult_t state = ncclSuccess;
    check_nccl(ncclCommGetAsyncError(comm, &state), "ncclCommGetAsyncError", comm);
    check_nccl(state, "NCCL collective", comm);
  }
}

void Communicator::abort() noexcept {
  for (std::atomic<ncclComm_t>& slot : ranks_->comms) {
    if (ncclComm_t comm = slot.exchange(nullptr)) ncclCommAbort(comm);
  }
}

Communicator::Group::Group() { check_nccl(ncclGroupStart(), "ncclGroupStart"); }

Communicator::Group::~Group() {
  if (open_) ncclGroupEnd();
}

void Communicator::Group::end() {
  open_ = false;
  check_nccl(ncclGroupEnd(), "ncclGroupEnd");
}

}  // namespace tandem::kernels::cuda
