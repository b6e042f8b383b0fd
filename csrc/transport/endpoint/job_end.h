// The end of the job for this rank: it leaves in good order, or everything fails.
//
// leave() goes through four states. Draining: receivers have not consumed everything that this rank
// sent. Announced: they have, all ranks are notified, and this rank goes on relaying. Closing: all
// ranks have left, so the links end; each closes when both sides have ended, so that nothing in
// flight is cut off. Resolved: leave() returns. A failure resolves it at once.
//
// Invariant: a rank that has left has nothing of its own in the network, so a receive that waits
// for it is unmatched. Every rank passes each leave and each failure on exactly once, before it
// acts on it.
//
// Everything but leave() and fail() runs on the reactor thread.

#pragma once

#include <chrono>
#include <cstdint>
#include <future>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "transport/endpoint/open_links.h"
#include "transport/endpoint/routes.h"
#include "transport/frames/frame.h"
#include "transport/reactor.h"

namespace topoopt {

// In place of a channel: a failure of the whole job.
inline constexpr uint32_t kAllChannels = 0xffffffff;

struct JobStatus {
  std::string failure{};  // of the whole job; empty while it lives
  std::set<int> left{};   // ranks that have left in good order
  bool closing = false;   // all have, and the links end

  bool failed() const { return !failure.empty(); }
  bool hasLeft(int rank) const { return left.contains(rank); }
  static std::string leftText(int rank) {
    return "rank " + std::to_string(rank) + " has left the job";
  }
};

class JobEnd {
 public:
  // The state that the end of the job depends on, and the reactions to it.
  class Host {
   public:
    // Whether all that this rank has sent is consumed.
    virtual bool allConsumed() const = 0;
    // The receivers shall acknowledge at once what they consume from now on.
    virtual void requestAcknowledgements() = 0;
    virtual void onRankLeft(int rank) = 0;
    virtual void onJobFailed(const std::string& why) = 0;
    // Another rank has failed the channel.
    virtual void onChannelFailed(uint32_t channel, const std::string& why) = 0;

   protected:
    ~Host() = default;
  };

  JobEnd(int rank, int size, Reactor& reactor, const OpenLinks& links, Routes& routes, Host& host);

  const JobStatus& status() const { return status_; }
  // Whether a link can be used, or could when the job failed: the other ranks end theirs after it.
  bool wasUp(size_t link) const;

  bool allLeft() const { return static_cast<int>(status_.left.size()) == size_; }

  // Not on the loop, see Endpoint.
  std::string leave(std::chrono::milliseconds limit);
  void fail(const std::string& why);

  // Fails the job here; failAll() on all ranks.
  void failHere(const std::string& why);
  void failAll(const std::string& why);
  // Notifies all ranks that this one fails the channel.
  void broadcastFailure(uint32_t channel, const std::string& why);
  // A kLeave or kFailure has come.
  void onFlooded(const Link& link, const FrameHeader& header, const std::string& text);
  // Something that leave() waits for may be true now: all is consumed, or a link is dead.
  void continueLeaving();

  // Of a channel of which nothing is on its way any more.
  void forgetChannel(uint32_t channel);
  size_t rememberedEntries() const { return failures_seen_.size(); }

 private:
  struct Leaving {
    bool announced = false;
    bool resolved = false;
    std::promise<std::string> result{};
  };

  void resolve(const std::string& result);
  void waitForDelivery(Reactor::Clock::time_point limit, std::promise<void>& delivered);

  const int rank_;
  const int size_;
  Reactor& reactor_;
  const OpenLinks& links_;
  Routes& routes_;
  Host& host_;
  JobStatus status_;
  std::set<std::pair<uint32_t, int>> failures_seen_;  // channel, rank that reported
  std::vector<bool> up_at_failure_;                   // by link
  std::unique_ptr<Leaving> leaving_;
};

}  // namespace topoopt
