#include "collective.h"

#include <algorithm>
#include <cstring>

namespace tandem::simt {
namespace {

template <class T>
T combine(ncclRedOp_t op, T a, T b) {
  switch (op) {
    case ncclProd: return static_cast<T>(a * b);
    case ncclMax: return std::max(a, b);
    case ncclMin: return std::min(a, b);
    default: return static_cast<T>(a + b);
  }
}

/// Calls f with a value of the element type. Integers are computed without sign, where overflow wraps.
template <class F>
void visit_type(const CollectiveCall& call, F&& f) {
  const bool compares = call.op == ncclMax || call.op == ncclMin;
  switch (call.type) {
    case ncclInt8: return compares ? f(std::int8_t{}) : f(std::uint8_t{});
    case ncclUint8: return f(std::uint8_t{});
    case ncclInt32: return compares ? f(std::int32_t{}) : f(std::uint32_t{});
    case ncclUint32: return f(std::uint32_t{});
    case ncclInt64: return compares ? f(std::int64_t{}) : f(std::uint64_t{});
    case ncclUint64: return f(std::uint64_t{});
    case ncclFloat32: return f(float{});
    default: return f(double{});
  }
}

/// Element i of the ranks' send buffers, combined.
template <class T>
T combined(const CollectiveCall& call, const std::vector<CollectivePart>& parts, std::size_t i) {
  T value = static_cast<const T*>(parts[0].send)[i];
  for (std::size_t r = 1; r < parts.size(); ++r)
    value = combine(call.op, value, static_cast<const T*>(parts[r].send)[i]);
  return value;
}

template <class T>
void reduce(const CollectiveCall& call, const std::vector<CollectivePart>& parts) {
  if (call.kind == CollectiveKind::ReduceScatter) {
    for (std::size_t r = 0; r < parts.size(); ++r) {
      T* out = static_cast<T*>(parts[r].receive);
      for (std::size_t i = 0; i < call.count; ++i) out[i] = combined<T>(call, parts, r * call.count + i);
    }
    return;
  }
  for (std::size_t i = 0; i < call.count; ++i) {
    const T value = combined<T>(call, parts, i);
    for (std::size_t r = 0; r < parts.size(); ++r) {
      if (call.writes(static_cast<int>(r))) static_cast<T*>(parts[r].receive)[i] = value;
    }
  }
}

}  // namespace

const char* CollectiveCall::name() const {
  switch (kind) {
    case CollectiveKind::Broadcast: return "ncclBroadcast";
    case CollectiveKind::Reduce: return "ncclReduce";
    case CollectiveKind::AllReduce: return "ncclAllReduce";
    case CollectiveKind::ReduceScatter: return "ncclReduceScatter";
    default: return "ncclAllGather";
  }
}

std::string CollectiveCall::text() const {
  return std::string(name()) + " of " + std::to_string(count) + " elements, type " + std::to_string(type) +
         ", operation " + std::to_string(op) + ", root " + std::to_string(root);
}

std::size_t CollectiveCall::element() const {
  switch (type) {
    case ncclInt8:
    case ncclUint8: return 1;
    case ncclInt32:
    case ncclUint32:
    case ncclFloat32: return 4;
    case ncclInt64:
    case ncclUint64:
    case ncclFloat64: return 8;
    default: return 0;
  }
}

std::size_t CollectiveCall::send_bytes(int ranks) const {
  return count * element() * (kind == CollectiveKind::ReduceScatter ? static_cast<std::size_t>(ranks) : 1);
}

std::size_t CollectiveCall::receive_bytes(int ranks) const {
  return count * element() * (kind == CollectiveKind::AllGather ? static_cast<std::size_t>(ranks) : 1);
}

bool CollectiveCall::reads(int rank) const { return kind != CollectiveKind::Broadcast || rank == root; }
bool CollectiveCall::writes(int rank) const { return kind != CollectiveKind::Reduce || rank == root; }

std::size_t CollectiveCall::in_place_offset(int rank) const {
  const bool by_rank = kind == CollectiveKind::ReduceScatter || kind == CollectiveKind::AllGather;
  return by_rank ? static_cast<std::size_t>(rank) * count * element() : 0;
}

void run_collective(const CollectiveCall& call, const std::vector<CollectivePart>& parts) {
  const std::size_t bytes = call.count * call.element();
  if (bytes == 0) return;
  switch (call.kind) {
    case CollectiveKind::Broadcast:
      for (const CollectivePart& part : parts) {
        std::memmove(part.receive, parts[static_cast<std::size_t>(call.root)].send, bytes);
      }
      break;
    case CollectiveKind::AllGather:
      for (const CollectivePart& part : parts) {
        for (std::size_t r = 0; r < parts.size(); ++r) {
          std::memmove(static_cast<char*>(part.receive) + r * bytes, parts[r].send, bytes);
        }
      }
      break;
    default: visit_type(call, [&](auto value) { reduce<decltype(value)>(call, parts); });
  }
}

}  // namespace tandem::simt
