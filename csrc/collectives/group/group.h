// The collectives of one process group, and its point-to-point messages.
//
// Collectives of a group run in the order of the calls, which must be the same on all members.
// Every collective carries a fingerprint of operation, arguments and position, and waiting members
// compare their calls. Ranks that disagree thus get an error that names both calls, instead of
// wrong sums or a timeout. Point-to-point messages carry their element type and are independent of
// that order. The first failure ends the group on all ranks.
//
// A group has one of two engines for its collectives, chosen in group_open.cc: schedules over the
// links of an endpoint (links/link_group.h), or memory shared by all members
// (memory/shared_memory_group.h).
//
// All functions may be called from any thread. `done` is called once: on the reactor thread, or on
// the thread that ran the operation in shared memory.

#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "collectives/group/call.h"
#include "collectives/group/circuit_client.h"
#include "collectives/group/pending_messages.h"
#include "collectives/group/ring_counters.h"
#include "collectives/group/state_surveys.h"
#include "common/reduce.h"
#include "plan/group_layout.h"
#include "transport/endpoint/endpoint.h"

namespace topoopt {

struct GroupConfig {
  std::string name;  // for messages
  uint32_t channel = 0;
  int rank = 0;                   // of this process
  std::vector<int> ranks;         // members, as ranks of the endpoint
  std::vector<plan::Ring> rings;  // over the first member of each server, as 0..ranks.size()-1
  plan::Grid grid{};              // of the same members, if they form a torus
  std::vector<int> servers{};     // of each member; empty: all different
  int segment_fd = -1;            // memory shared by all members; -1: use links
  std::shared_ptr<const HopTable> hops{};  // between servers; nullptr: all are neighbours
  // Of members' servers over others, if their frames take these: see memberLinks().
  std::vector<plan::Route> routes{};
  CostModel cost{};  // the same on all members
  // Over links: a name of Algorithm, or auto.
  std::string algorithm{"auto"};
  // For collectives that move circuits, over links; `servers` is not empty.
  std::shared_ptr<CircuitClient> circuits{};
  bool planned_routes_only = false;              // of all-to-alls, whatever their sizes
  std::chrono::milliseconds scratch_idle{5000};  // unused scratch memory is freed after this time
  // Called once, on the reactor thread, when the group fails, but not at shutdown().
  std::function<void(const std::string& why)> failed{};
};

// The memory of a point-to-point message.
struct MessageBuffer {
  void* data;
  size_t bytes;
  DataType type = DataType::kUint8;  // the same at both ends
};

class Group : public std::enable_shared_from_this<Group> {
 public:
  using Milliseconds = std::chrono::milliseconds;

  // Opens the channel; call shutdown() before releasing the last reference. Throws
  // std::invalid_argument for an invalid configuration.
  static std::shared_ptr<Group> open(std::shared_ptr<Endpoint> endpoint, GroupConfig config);

  virtual ~Group() = default;

  const std::string& name() const { return config_.name; }
  int rank() const { return config_.rank; }
  int size() const { return static_cast<int>(config_.ranks.size()); }

  // In place on `data`, `count` elements.
  void allReduce(void* data, size_t count, DataType type, ReduceOp op, const CallTerms& terms,
                 Done done);
  void broadcast(void* data, size_t bytes, int root, const CallTerms& terms, Done done);
  // `input` is not changed; `output` (used on the root) must not overlap it.
  void reduce(const void* input, void* output, size_t count, DataType type, ReduceOp op, int root,
              const CallTerms& terms, Done done);
  // Member i contributes bytes[i]; the own block must already be in `output`.
  void allGather(void* output, std::vector<size_t> bytes, const CallTerms& terms, Done done);
  // Member i receives the reduction of block i, counts[i] elements.
  void reduceScatter(const void* input, void* output, std::vector<size_t> counts, DataType type,
                     ReduceOp op, const CallTerms& terms, Done done);
  // `bytes` of every member to consecutive blocks in `output` (used on the root), whose own block
  // must already be there.
  void gather(const void* input, void* output, size_t bytes, int root, const CallTerms& terms,
              Done done);
  // Consecutive blocks of `bytes` in `input` (used on the root) to every member; the caller copies
  // the root's own block.
  void scatter(const void* input, void* output, size_t bytes, int root, const CallTerms& terms,
               Done done);
  // Exchanges send_bytes[i] and receive_bytes[i] with every other member i; `name` is an
  // all-to-all.
  void exchange(CallName name, const void* input, std::vector<size_t> send_bytes, void* output,
                std::vector<size_t> receive_bytes, const CallTerms& terms, Done done);
  // The maximum size of a collective whose data lands while it runs; 0: unsupported. It is the
  // smallest that keeps the links busy, because the caller needs as much host memory. The same on
  // all members.
  virtual size_t landingBytes() { return 0; }
  // Complete when all members have called it.
  void barrier(const CallTerms& terms, Done done);

  virtual void send(const MessageBuffer& message, int target, int tag, const CallTerms& terms,
                    Done done);
  virtual void receive(const MessageBuffer& message, int source, int tag, const CallTerms& terms,
                       Done done);
  // Receives from the first member with a message; `from` is called with its rank in the group.
  virtual void receiveAny(const MessageBuffer& message, int tag, const CallTerms& terms,
                          std::function<void(int)> from, Done done);

  // Lets a waiting thread make progress on messages until `over` returns true or the time limit;
  // may return at once. `over` is called often and must stay true.
  virtual void await(const std::function<bool()>&, std::optional<Reactor::Clock::time_point>) {}
  // Wakes await() to check `over` again.
  virtual void wakeWaiting() {}

  // Collectives called so far.
  virtual uint64_t sequenceNumber() const = 0;

  // The failure of the group, or nullptr.
  std::exception_ptr error() const;

  // Statistics of the group's rings and trees. Not on the reactor thread.
  virtual std::vector<RingCounters> counters() = 0;

  // Fails pending operations here and on all other ranks with AbortedError.
  void abort(const std::string& why);

  // Closes the channel and fails pending operations here. Not on the reactor thread, nor in `done`.
  virtual void shutdown();

 protected:
  // kNoRank: the others already know. kShutdown: no failure, so sent messages may still arrive.
  enum class Notify { kAllRanks, kNoRank, kShutdown };

  Group(std::shared_ptr<Endpoint> endpoint, GroupConfig config);

  // Engine: runs a collective after all that were submitted earlier.
  virtual void submit(CollectiveRequest request, const CallTerms& terms, Done done) = 0;
  // On the reactor thread, after error_ was set: closes the channel and fails all collectives.
  virtual void endCollectives(std::exception_ptr error, Notify notify) = 0;
  // The running collective and its number; on the reactor thread.
  virtual std::optional<std::pair<Called, uint64_t>> current() = 0;

  // Reactor thread only.
  void fail(std::exception_ptr error, Notify notify);
  void closeChannel(const std::string& why, Notify notify);
  virtual void onControl(const FrameHeader& header, const std::string& payload);
  // Called when cables were lost, recovered or changed their rate.
  virtual void onLinksChanged() {}
  virtual void onOpened() {}
  virtual void onLeft(int) {}  // a rank of the endpoint left the job
  // Texts of pending messages, at most `most`.
  virtual std::vector<std::string> messageTexts(size_t most) const { return messages_.texts(most); }
  // `peer` sent a message of a collective that has ended here.
  virtual void onUnmatched(int peer, uint32_t number) = 0;
  // Any thread.
  void failSoon(std::exception_ptr error, Notify notify = Notify::kAllRanks);
  int memberOf(int rank) const;  // -1: not a member
  // Requests the state of `ranks` for a late message, then fails the group unless it has completed.
  void failLate(const std::vector<int>& ranks, const std::string& what, Milliseconds limit,
                std::function<bool()> over);
  // Adds both ranks' calls to the error of a message that does not match its receive.
  std::exception_ptr withBothCalls(std::exception_ptr error, int tag) const;

  const std::shared_ptr<Endpoint> endpoint_;
  const GroupConfig config_;

  mutable std::mutex mutex_;
  std::exception_ptr error_;  // guarded by mutex_
  StateSurveys surveys_;      // reactor thread only

 private:
  ChannelEvents channelEvents();
  std::string stateText();
  void pointToPoint(PendingMessages::Message message, std::function<void(Done)> start);
  void startSend(const FlowId& flow, const MessageBuffer& message, int target, Done finished);
  void endSend(uint64_t sending);
  void onMessageLate(uint64_t number);

  std::exception_ptr aborted_;  // reason of abort(); set before error_; guarded by mutex_
  PendingMessages messages_;    // reactor thread only
  std::set<uint64_t> sending_;  // to other servers, at the circuit client; reactor thread only
};

std::string whatFailed(std::exception_ptr error);

}  // namespace topoopt
