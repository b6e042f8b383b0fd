// Chooses the routes of an all-to-all by the sizes of all members.
//
// A member with many bytes sends its sizes to all others and waits for theirs. Others send theirs
// only to members that request them, and do not wait. With all sizes, a member divides its own
// messages among routes, so that the busiest link is as little busy as possible
// (plan/balanced_shares.h). No member depends on the choice of another: the target accepts frames
// from any route. So a member that has waited too long uses the plan's routes, and so does one
// whose cables are lost (Routes::intact).

#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "plan/balanced_shares.h"
#include "plan/cost_model.h"
#include "transport/endpoint/endpoint.h"

namespace topoopt {

// Reactor thread only.
class SizeExchange {
 public:
  // Of the message to each member; empty: all take the plan's routes.
  using Ways = std::vector<std::shared_ptr<Routes::Ways>>;
  using Ready = std::function<void(Ways)>;

  // `ranks` are the members' ranks of the endpoint; `rank` is this member's index.
  SizeExchange(Endpoint& endpoint, uint32_t channel, const std::vector<int>& ranks, int rank,
               const CostModel& cost)
      : endpoint_(endpoint), channel_(channel), ranks_(ranks), rank_(rank), cost_(cost) {}

  // Collective `number` is an all-to-all with these bytes to and from each member. `ready` is
  // called at once or later, unless cancel() is.
  void begin(uint64_t number, const std::vector<size_t>& sent, const std::vector<size_t>& received,
             Ready ready);
  void onSizes(const FrameHeader& header, const std::string& payload);
  void cancel();

  // The last all-to-all with routes of its own: bytes of the busiest link over the plan's routes,
  // compared with these. 0: none.
  double gain() const { return gain_; }

 private:
  // Bytes for each server, and over each link if all take the plan's routes.
  using Row = std::vector<double>;
  struct Begun {
    uint64_t number;
    std::vector<size_t> sent;
    bool broadcast;
  };
  struct Solution {
    std::vector<uint32_t> shape;
    BalancedShares shares;
  };

  const RouteChoices* choices();
  bool serves(const RouteChoices& choices) const;
  int serverOf(int member) const;
  double seconds(const RouteChoices& choices, const std::vector<size_t>& sent,
                 const std::vector<size_t>& received) const;
  double costOfExchange(const RouteChoices& choices) const;
  Row rowOf(const RouteChoices& choices, const std::vector<size_t>& sent) const;
  void send(int rank, uint64_t number, const Row& row, bool requests);
  void useIfComplete();
  Ways divided(const RouteChoices& choices, const std::map<int, Row>& rows);
  const BalancedShares& solved(const RouteChoices& choices, const BytesByPair& bytes);
  void end(Ways ways);

  Endpoint& endpoint_;
  const uint32_t channel_;
  const std::vector<int>& ranks_;
  const int rank_;
  const CostModel& cost_;

  std::optional<const RouteChoices*> choices_{};  // nullptr: this group never exchanges sizes
  std::deque<Begun> begun_;                       // the last ones
  uint64_t next_ = 0;                             // after the last one that has begun
  std::map<uint64_t, std::map<int, Row>> rows_;   // by number and rank, from the running one on
  std::map<uint64_t, std::set<int>> requests_;    // ranks, of all-to-alls that have not begun
  uint64_t number_ = 0;                           // of the one that waits
  Ready ready_;                                   // empty: none waits
  std::optional<Reactor::TimerId> timer_;
  int pause_ = 0;                  // all-to-alls to come that use the plan's routes
  int next_pause_ = 1;             // after the next one that has waited too long
  std::list<Solution> solutions_;  // most recently used first
  double gain_ = 0;
};

}  // namespace topoopt
