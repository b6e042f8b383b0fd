// The collectives of one process group over an endpoint.
//
// Collectives of a group run one after the other, in the order in which they were called, which
// must be the same on all members; a fingerprint of operation, arguments and position in that order
// travels with every message, so ranks that disagree get an error instead of wrong sums.
// Point-to-point messages run beside them. The first failure ends the group on all ranks.
//
// All functions may be called from any thread. `done` is called once, on the reactor thread.

#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "collectives/operation.h"
#include "common/reduce.h"
#include "plan/schedule.h"
#include "transport/endpoint.h"

namespace topoopt {

struct GroupConfig {
  std::string name;  // for messages
  uint32_t channel = 0;
  int rank = 0;                  // of this process in the group
  std::vector<int> ranks;        // members, as ranks of the endpoint
  std::vector<RingOrder> rings;  // over 0..ranks.size()-1
};

class Group : public std::enable_shared_from_this<Group> {
 public:
  using Milliseconds = std::chrono::milliseconds;

  // Opens the channel; call shutdown() before the last reference goes.
  static std::shared_ptr<Group> open(std::shared_ptr<Endpoint> endpoint, GroupConfig config);

  int rank() const { return config_.rank; }
  int size() const { return static_cast<int>(config_.ranks.size()); }

  // In place on `data`, `count` elements.
  void allReduce(void* data, size_t count, DataType type, ReduceOp op, Milliseconds limit,
                 Done done);
  void broadcast(void* data, size_t bytes, int root, Milliseconds limit, Done done);
  // `input` is not changed; `output` (root only) must not overlap it.
  void reduce(const void* input, void* output, size_t count, DataType type, ReduceOp op, int root,
              Milliseconds limit, Done done);
  // Member i contributes bytes[i]; the own block is already in its place in `output`.
  void allGather(void* output, std::vector<size_t> bytes, Milliseconds limit, Done done);
  // Member i receives the reduction of block i, counts[i] elements.
  void reduceScatter(const void* input, void* output, std::vector<size_t> counts, DataType type,
                     ReduceOp op, Milliseconds limit, Done done);
  // Sends send_bytes[i] to and receives receive_bytes[i] from every other member i; also gather and
  // scatter, where most sizes are zero. `name` is what the operation is called.
  void exchange(const std::string& name, const void* input, std::vector<size_t> send_bytes,
                void* output, std::vector<size_t> receive_bytes, Milliseconds limit, Done done);
  // Complete when all members have called it.
  void barrier(Milliseconds limit, Done done);

  void send(const void* data, size_t bytes, int target, int tag, Milliseconds limit, Done done);
  void receive(void* data, size_t bytes, int source, int tag, Milliseconds limit, Done done);
  // From the member whose message is there first; `from` is told its rank in the group.
  void receiveAny(void* data, size_t bytes, int tag, Milliseconds limit,
                  std::function<void(int)> from, Done done);

  // Collectives called so far.
  uint64_t sequenceNumber() const;

  // Why the group is unusable, or nullptr.
  std::exception_ptr error() const;

  // Fails what is pending here and on all other ranks with AbortedError.
  void abort(const std::string& why);

  // Closes the channel; what is pending fails here. Not on the reactor thread.
  void shutdown();

 private:
  struct Collective {
    std::string name;
    uint64_t number;
    Milliseconds limit;
    Operation::Setup setup;
    Done done;
  };
  struct PointToPoint {
    std::string what;
    std::optional<Reactor::TimerId> timer;
    Done done;
  };

  Group(std::shared_ptr<Endpoint> endpoint, GroupConfig config);

  void enqueue(const std::string& name, uint64_t arguments, Schedule schedule, Buffers buffers,
               DataType type, ReduceOp op, Milliseconds limit, Done done);
  void startNext();
  void onOperationDone(std::exception_ptr error);
  void onTimeout();
  // kHere: the others know already. kGoodbye: nothing is wrong, what was sent may still arrive.
  enum class Spread { kEverywhere, kHere, kGoodbye };
  void fail(std::exception_ptr error, Spread spread);
  void failSoon(std::exception_ptr error);
  using Entry = std::list<PointToPoint>::iterator;
  void pointToPoint(std::string what, Milliseconds limit, Done done,
                    std::function<void(Done)> start);

  const std::shared_ptr<Endpoint> endpoint_;
  const GroupConfig config_;

  mutable std::mutex mutex_;  // guards called_ and error_, which other threads read
  uint64_t called_ = 0;
  std::exception_ptr error_;

  // Reactor thread only.
  std::deque<Collective> queue_;
  std::shared_ptr<Operation> running_;
  std::optional<Reactor::TimerId> timer_;
  std::list<PointToPoint> point_to_point_;
};

}  // namespace topoopt
