// The collectives of one process group, and its point-to-point messages.
//
// Collectives of a group run one after the other, in the order in which they were called, which
// must be the same on all members; a fingerprint of operation, arguments and position in that order
// travels with every collective, and members that wait compare what they have called, so ranks that
// disagree get an error that names both calls instead of wrong sums or a timeout. Point-to-point
// messages, which carry their element type, run beside them. The first failure ends the group on
// all ranks.
//
// A group has one of two engines for its collectives, chosen when it is opened (group_open.cc):
// schedules over the links of an endpoint (links/link_group.h), or memory that all members share
// (memory/shared_memory_group.h).
// Everything else is here; pending_messages.h has the messages whose `done` was not called yet.
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
  int rank = 0;                   // of this process in the group
  std::vector<int> ranks;         // members, as ranks of the endpoint
  std::vector<plan::Ring> rings;  // over the first members of the servers, as 0..ranks.size()-1
  plan::Grid grid{};              // of the same members, if they form a torus
  std::vector<int> servers{};     // of each member; empty if all are different
  int segment_fd = -1;            // memory that all members share; -1: collectives go over links
  std::shared_ptr<const HopTable> hops{};  // between servers; nullptr if all are neighbours
  CostModel cost{};                        // the same on all members
  std::string algorithm{"auto"};  // over links: auto, ring, multi_ring, both_ways, tree, doubling,
                                  // torus
  // Of a group whose member i is server i's only rank, over links: all-to-alls may move circuits.
  std::shared_ptr<CircuitClient> circuits{};
  std::chrono::milliseconds scratch_idle{5000};  // after which unused scratch memory is freed
  // Called once, on the reactor thread, when the group has failed, and not when it is shut down.
  std::function<void(const std::string& why)> failed{};
};

// The memory of a point-to-point message.
struct MessageBuffer {
  void* data;
  size_t bytes;
  DataType type = DataType::kUint8;  // the same at both ends
};

// What an exchange is called, and its root if it has one.
struct ExchangeKind {
  CallName name;
  int root = -1;
};

class Group : public std::enable_shared_from_this<Group> {
 public:
  using Milliseconds = std::chrono::milliseconds;

  // Opens the channel; call shutdown() before the last reference goes. Throws std::invalid_argument
  // for a configuration that is not valid.
  static std::shared_ptr<Group> open(std::shared_ptr<Endpoint> endpoint, GroupConfig config);

  virtual ~Group() = default;

  const std::string& name() const { return config_.name; }
  int rank() const { return config_.rank; }
  int size() const { return static_cast<int>(config_.ranks.size()); }

  // In place on `data`, `count` elements.
  void allReduce(void* data, size_t count, DataType type, ReduceOp op, const CallTerms& terms,
                 Done done);
  void broadcast(void* data, size_t bytes, int root, const CallTerms& terms, Done done);
  // `input` is not changed; `output` (root only) must not overlap it.
  void reduce(const void* input, void* output, size_t count, DataType type, ReduceOp op, int root,
              const CallTerms& terms, Done done);
  // Member i contributes bytes[i]; the own block is already in its place in `output`.
  void allGather(void* output, std::vector<size_t> bytes, const CallTerms& terms, Done done);
  // Member i receives the reduction of block i, counts[i] elements.
  void reduceScatter(const void* input, void* output, std::vector<size_t> counts, DataType type,
                     ReduceOp op, const CallTerms& terms, Done done);
  // Sends send_bytes[i] to and receives receive_bytes[i] from every other member i; also gather and
  // scatter, where most sizes are zero.
  void exchange(ExchangeKind kind, const void* input, std::vector<size_t> send_bytes, void* output,
                std::vector<size_t> receive_bytes, const CallTerms& terms, Done done);
  // The most bytes that a collective shall carry whose data lands while it runs: as few as keep the
  // links busy, for its caller needs that much host memory. 0: data must be there from the start.
  // The same on all members.
  virtual size_t landingBytes() { return 0; }
  // Complete when all members have called it.
  void barrier(const CallTerms& terms, Done done);

  virtual void send(const MessageBuffer& message, int target, int tag, const CallTerms& terms,
                    Done done);
  virtual void receive(const MessageBuffer& message, int source, int tag, const CallTerms& terms,
                       Done done);
  // From the member whose message is there first; `from` is called with its rank in the group.
  virtual void receiveAny(const MessageBuffer& message, int tag, const CallTerms& terms,
                          std::function<void(int)> from, Done done);

  // For threads that wait for messages: may do the work for them, on the thread that calls it,
  // until `over` is true or the time has come, or return at once. `over` is called often, and true
  // for good once it is.
  virtual void await(const std::function<bool()>&, std::optional<Reactor::Clock::time_point>) {}
  // `over` may have become true without a callback of this group.
  virtual void wakeWaiting() {}

  // Collectives called so far.
  virtual uint64_t sequenceNumber() const = 0;

  // Why the group is unusable, or nullptr.
  std::exception_ptr error() const;

  // The group's rings and trees, and what they have carried. Not on the reactor thread.
  virtual std::vector<RingCounters> counters() = 0;

  // Fails what is pending here and on all other ranks with AbortedError.
  void abort(const std::string& why);

  // Closes the channel; what is pending fails here. Not on the reactor thread, nor in `done`.
  virtual void shutdown();

 protected:
  // kNoRank: the others know already. kShutdown: nothing is wrong, what was sent may still arrive.
  enum class Notify { kAllRanks, kNoRank, kShutdown };

  Group(std::shared_ptr<Endpoint> endpoint, GroupConfig config);

  // The engine: runs a collective after those that were submitted before it.
  virtual void submit(CollectiveRequest request, const CallTerms& terms, Done done) = 0;
  // On the reactor thread, when error_ has been set: closes the channel and fails all collectives.
  virtual void endCollectives(std::exception_ptr error, Notify notify) = 0;
  // The collective that this member is in, and its number; on the reactor thread.
  virtual std::optional<std::pair<Called, uint64_t>> current() = 0;

  // Reactor thread only.
  void fail(std::exception_ptr error, Notify notify);
  void closeChannel(const std::string& why, Notify notify);
  virtual void onControl(const FrameHeader& header, const std::string& payload);
  // Cables were lost, came back or have another rate.
  virtual void onLinksChanged() {}
  virtual void onOpened() {}   // the channel is open
  virtual void onLeft(int) {}  // a rank of the endpoint has left the job
  // Of the messages that are pending, at most so many.
  virtual std::vector<std::string> messageTexts(size_t most) const { return messages_.texts(most); }
  // `peer` has sent a message of a collective that is over here.
  virtual void onUnmatched(int peer, uint32_t number) = 0;
  // Any thread.
  void failSoon(std::exception_ptr error, Notify notify = Notify::kAllRanks);
  int memberOf(int rank) const;  // -1: it is none
  // A message is late: the group fails unless it is over when `asked` have said what they are in.
  void failLate(const std::vector<int>& asked, const std::string& what, Milliseconds limit,
                std::function<bool()> over);
  // Of a message that does not fit its receive, with what both ranks have called.
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
  void onMessageLate(uint64_t number);

  std::exception_ptr aborted_;  // what abort() was called for; error_ follows; guarded by mutex_
  PendingMessages messages_;    // reactor thread only
};

std::string whatFailed(std::exception_ptr error);

}  // namespace topoopt
