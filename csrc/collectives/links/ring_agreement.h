// How the members of a group come to use other rings from the same collective on.
//
// The first member proposes rings. Every member then begins no further collective, and answers with
// the number of the first one that it has not begun; the first member names the largest of these
// numbers, from which on all use the rings that it has proposed, and all go on. Collectives that
// have begun are not touched: they end over the rings that they began with.
//
// A member that has shut the group down takes part in nothing more, so its endpoint answers for it
// (Endpoint::onControl). Where a member has not created the group yet, the others would wait for
// it; so a proposal that is not answered in time is taken back, and made again later.

#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "plan/network.h"
#include "transport/endpoint/endpoint.h"

namespace topoopt {

// All functions are for the reactor thread.
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
  bool holds() const { return !offered_.empty(); }

  // The group ends, and calls nothing more; with `notify`, members that wait go on.
  void cancel(bool notify);

 private:
  void start(std::vector<plan::Ring> rings);
  void decide(uint64_t first);
  void giveUp();
  void onOffer(uint64_t version, std::vector<plan::Ring> rings);
  void onAnswer(int source, uint64_t version, uint64_t next);
  void onStart(uint64_t version, uint64_t first);
  void broadcast(FrameType type, uint64_t number, const std::string& payload);

  Endpoint& endpoint_;
  const uint32_t channel_;
  const std::vector<int>& ranks_;
  const int rank_;
  const Member member_;

  std::map<uint64_t, std::vector<plan::Ring>> offered_;  // by version, and not decided
  // Of the first member.
  uint64_t version_ = 0;   // the last one that was proposed
  std::set<int> missing_;  // members, as ranks of the endpoint, that have not answered
  bool asking_ = false;
  uint64_t first_ = 0;                             // the largest answer so far
  std::optional<std::vector<plan::Ring>> wanted_;  // after this agreement
  std::optional<Reactor::TimerId> timer_;
  std::chrono::milliseconds pause_;
};

}  // namespace topoopt
