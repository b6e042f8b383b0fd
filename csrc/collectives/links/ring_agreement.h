// Makes all members of a group switch to other paths, its rings and links, at the same collective.
//
// The first member proposes paths. Every member then holds further collectives and answers with the
// number of its first collective that has not begun. The first member announces the largest number;
// from there on all use the new paths. Collectives that have begun keep theirs.
//
// Every version that the first member offers ends with a kRingsStart. A member holds its
// collectives only while it has an offer without its end. A lost cable can reorder the two, so a
// member remembers an end that arrives before its offer. A member that has held too long answers
// again, and the first member resends the end.
//
// The endpoint answers for a member that has shut the group down (Channels::onControl). If a member
// has not created the group yet, the others would wait for it. So the first member withdraws an
// unanswered proposal and repeats it later.

#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "plan/group_layout.h"
#include "transport/endpoint/endpoint.h"

namespace topoopt {

// The paths offered to one member, in any order of messages. Reactor thread only.
class OfferedRings {
 public:
  // Returns false if the version was withdrawn before its offer arrived.
  bool offer(uint64_t version, CollectivePaths paths);
  // Ends the version. Returns its paths; nullopt if its offer has not arrived (it is then ignored).
  std::optional<CollectivePaths> end(uint64_t version);

  bool any() const { return !open_.empty(); }
  uint64_t first() const { return open_.begin()->first; }  // requires any()
  const CollectivePaths& at(uint64_t version) const { return open_.at(version); }
  void clear();

 private:
  std::map<uint64_t, CollectivePaths> open_;
  std::set<uint64_t> ended_first_;  // versions that ended before their offer
};

class RingAgreement {
 public:
  // The member's callbacks.
  struct Member {
    std::function<uint64_t()> next;  // number of the first collective that has not begun
    // Collectives from `first` on use these paths; later versions replace earlier ones.
    std::function<void(uint64_t version, uint64_t first, CollectivePaths paths)> decided;
    std::function<void()> released;  // holds() is false again
  };

  // `ranks` are the members' ranks of the endpoint; `rank` is this member's index.
  RingAgreement(Endpoint& endpoint, uint32_t channel, const std::vector<int>& ranks, int rank,
                Member member);

  // First member only. A proposal during an agreement is made after it.
  void propose(CollectivePaths paths);

  // Returns false for frames of another type.
  bool onControl(const FrameHeader& header, const std::string& payload);

  // No collective may begin.
  bool holds() const { return offered_.any(); }

  // Ends all callbacks; with `notify`, waiting members continue.
  void cancel(bool notify);

 private:
  void start(CollectivePaths paths);
  void decide(uint64_t first);
  void giveUp();
  void end(uint64_t first);
  void sendEnd(int member, const std::pair<const uint64_t, uint64_t>& end);
  void answer(uint64_t version);
  void watchHold();
  void onOffer(uint64_t version, CollectivePaths paths);
  void onAnswer(int source, uint64_t version, uint64_t next);
  void onStart(uint64_t version, uint64_t first);
  void broadcast(FrameType type, uint64_t number, const std::string& payload);

  Endpoint& endpoint_;
  const uint32_t channel_;
  const std::vector<int>& ranks_;
  const int rank_;
  const Member member_;

  OfferedRings offered_;
  std::optional<Reactor::TimerId> hold_timer_;
  // First member only.
  uint64_t version_ = 0;   // the last proposed one
  std::set<int> missing_;  // members (ranks of the endpoint) without an answer
  bool asking_ = false;
  uint64_t first_ = 0;                     // largest answer
  std::map<uint64_t, uint64_t> ends_;      // recent versions and their kRingsStart
  std::optional<CollectivePaths> wanted_;  // next proposal
  std::optional<Reactor::TimerId> timer_;
  std::chrono::milliseconds pause_;
};

}  // namespace topoopt
