// NCCL's CollNet: collectives of one rank per server, which NCCL made for switches that reduce.
// Here the collectives engine runs them over all links.
//
// NCCL starts operations before earlier ones of the communicator are complete, in the same order on
// all members. A group runs one operation at a time, so the groups of a communicator take turns.
//
// NCCL's threads wait here only to close a communicator; test() reports completed operations.

#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "collectives/group/group.h"
#include "common/reduce.h"
#include "nccl/abi.h"
#include "nccl/wiring.h"
#include "transport/endpoint/endpoint.h"

namespace topoopt::nccl {

class CollComm;

// One operation; its communicator outlives it.
struct CollRequest {
  CollComm* comm = nullptr;
  bool used = false;
  size_t bytes = 0;  // of the result
  std::atomic<bool> over{false};
};

// The bytes of a collective over all members' blocks that one operation covers.
struct BlockWindow {
  size_t block_bytes;
  size_t offset;
  size_t bytes;

  // The bytes of member i's block that are in the window.
  std::vector<size_t> parts(int members) const;
};

struct TypedReduction {
  DataType type;
  ReduceOp op;
};
// From NCCL's numbers; nullopt if the engine cannot reduce such elements.
std::optional<TypedReduction> reductionOf(int element, int reduction);

// One end of a communicator. NCCL uses it from one thread at a time.
class CollComm : public std::enable_shared_from_this<CollComm> {
 public:
  static constexpr uint32_t kGroups = 8;  // NCCL's operations in flight per eight channels

  // `group` has the first of kGroups channels. Throws std::invalid_argument for an invalid group.
  // Call close() before releasing the last reference.
  CollComm(std::shared_ptr<Endpoint> endpoint, const GroupConfig& group);

  CollComm(const CollComm&) = delete;
  CollComm& operator=(const CollComm&) = delete;

  // Each returns nullptr if too many operations are in flight. `out` may be `in`, but must not
  // overlap it otherwise.
  CollRequest* allReduce(const void* in, void* out, size_t count, const TypedReduction& reduction);
  // `in` is the own part of the window, `out` the whole window.
  CollRequest* allGather(const void* in, void* out, const BlockWindow& window);
  // `in` is the whole window, `out` the own part of it.
  CollRequest* reduceScatter(const void* in, void* out, const BlockWindow& window,
                             const TypedReduction& reduction);
  // kRemoteError after a failure of the communicator.
  Result test(CollRequest& request, bool& done, int* bytes);
  // Fails the other members' operations if any of this one's is in flight.
  void close();

  std::string why() const;

 private:
  static constexpr size_t kRequests = 256;  // NCCL has at most 64 channels

  CollRequest* take(size_t bytes);
  Group& next() { return *groups_[turn_++ % kGroups]; }
  Done doneOf(CollRequest& request);
  void fail(const std::string& why);

  const int rank_;
  const int size_;
  std::vector<std::shared_ptr<Group>> groups_;
  size_t turn_ = 0;
  std::array<CollRequest, kRequests> requests_{};
  std::atomic<bool> failed_{false};
  mutable std::mutex mutex_;
  std::string why_{};
};

// The group of these ranks (one per server) with the planned rings; servers without a member are
// left out of the rings.
GroupConfig collNetGroup(const Wiring& wiring, std::vector<int> ranks, int rank, uint32_t channel);

}  // namespace topoopt::nccl
