// How the members of a group come to use other rings from the same collective on.
//
// The first member proposes rings. Every member then begins no further collective, and answers with
// the number of the first one that it has not begun; the first member names the largest of these
// numbers, from which on all use the rings that it has proposed, and all go on. Collectives that
// have begun are not touched: they end over the rings that they began with.
//
// Every version that the first member offers ends with a kRingsStart. A member holds its
// collectives while it has an offer without its end, and only then. A lost cable can make the two
// overtake each other, so a member remembers an end that comes before its offer. The first member
// owes the end: a member that has held for longer than an agreement takes answers again, and the
// first member sends the end again.
//
// A member that has shut the group down takes part in nothing more, so its endpoint answers for it
// (Channels::onControl). Where a member has not created the group yet, the others would wait for
// it; so a proposal that is not answered in time is taken back, and made again later.

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

#include "plan/network.h"
#include "transport/endpoint/endpoint.h"

namespace topoopt {

// All functions are for the reactor thread.
// The versions of rings that one member has been offered, in whatever order messages arrive.
class OfferedRings {
 public:
  // False if the version was taken back before its offer came.
  bool offer(uint64_t version, std::vector<plan::Ring> rings);
  // The version ends. Returns its rings; nullopt if its offer has not come, and will not count.
  std::optional<std::vector<plan::Ring>> end(uint64_t version);

  // A version is offered that has not ended.
  bool any() const { return !open_.empty(); }
  uint64_t first() const { return open_.begin()->first; }  // of those, if there is any
  const std::vector<plan::Ring>& at(uint64_t version) const { return open_.at(version); }
  void clear();

 private:
  std::map<uint64_t, std::vector<plan::Ring>> open_;
  std::set<uint64_t> ended_first_;  // versions whose end came before their offer
};

class RingAgreement {
 public:
  // What the agreement asks of its member, and what it calls it for.
  struct Member {
    std::function<uint64_t()> next;  // the number of the first collective that has not begun
    // The rings of `version` serve collectives from `first` on; later versions replace earlier
    // ones.
    std::function<void(uint64_t version, uint64_t first, std::vector<plan::Ring> rings)> decided;
    std::function<void()> released;  // holds() is false again
  };

  // `ranks` are the members as ranks of the endpoint, `rank` is the place of this one.
  RingAgreement(Endpoint& endpoint, uint32_t channel, const std::vector<int>& ranks, int rank,
                Member member);

  // Of the first member. What is proposed while there is no agreement yet is proposed after it.
  void propose(std::vector<plan::Ring> rings);

  // False if the frame is about something else.
  bool onControl(const FrameHeader& header, const std::string& payload);

  // No collective may begin.
  bool holds() const { return offered_.any(); }

  // The group ends, and calls nothing more; with `notify`, members that wait go on.
  void cancel(bool notify);

 private:
  void start(std::vector<plan::Ring> rings);
  void decide(uint64_t first);
  void giveUp();
  void end(uint64_t first);
  void sendEnd(int member, const std::pair<const uint64_t, uint64_t>& end);
  void answer(uint64_t version);
  void watchHold();
  void onOffer(uint64_t version, std::vector<plan::Ring> rings);
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
  // Of the first member.
  uint64_t version_ = 0;   // the last one that was proposed
  std::set<int> missing_;  // members, as ranks of the endpoint, that have not answered
  bool asking_ = false;
  uint64_t first_ = 0;                             // the largest answer so far
  std::map<uint64_t, uint64_t> ends_;              // of the last versions, as kRingsStart has them
  std::optional<std::vector<plan::Ring>> wanted_;  // after this agreement
  std::optional<Reactor::TimerId> timer_;
  std::chrono::milliseconds pause_;
};

}  // namespace topoopt
