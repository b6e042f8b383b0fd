// AllReduce rings whose flows share links max-min fairly, and whose paths change as they run.

#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "sim/core/path_table.h"
#include "sim/flow/max_min_rates.h"

namespace topoopt {

// Links in their order, one after the other.
using LinkPath = std::vector<int>;

// Of the flows of a ring that have ended: a flow is what one hop sends in one round.
struct EndedFlows {
  int64_t count = 0;
  double seconds = 0;      // sum of completion times
  double bytes_per_s = 0;  // sum of mean rates
  double bytes = 0;
};

// Flows as fluid. A ring has `rounds` rounds; in each of them every hop sends `size_bytes`, and the
// next round begins when all have.
class RingTransfers {
 public:
  // `capacity` is in bytes per second. Throws std::invalid_argument unless all are above 0.
  explicit RingTransfers(std::vector<double> capacity);

  // A ring that begins now: its number. Throws std::invalid_argument for a path without links or
  // with one that there is not, a size that is not above 0, or fewer than one round.
  int start(std::vector<LinkPath> hops, double size_bytes, int rounds);

  // Every hop of `ring` goes on over another path; what it has sent it has sent. Throws
  // std::invalid_argument for a ring that has ended, or paths that are not one for each hop.
  void reroute(int ring, std::vector<LinkPath> hops);

  // Until rings end, or until `until_s`: the rings that ended then, in ascending order.
  std::vector<int> advance(double until_s);

  double now() const { return now_; }
  const EndedFlows& endedFlows(int ring) const { return ringOf(ring).ended; }

 private:
  struct Hop {
    LinkPath links;
    int path = -1;  // in the table
    double left_bytes = 0;
    bool sends = true;
  };
  struct Ring {
    std::vector<Hop> hops;
    double size_bytes;
    int rounds_left;
    int sending;
    double round_began_s;
    EndedFlows ended;
  };

  void check(const std::vector<LinkPath>& hops) const;
  const Ring& ringOf(int ring) const;
  void rebuild();
  double nextEnd() const;
  void send(double seconds);
  bool endFlows(Ring& ring);
  void beginRound(Ring& ring);

  std::vector<double> capacity_;
  std::vector<Ring> rings_;
  std::vector<int> active_;
  std::unique_ptr<PathTable> table_;
  std::unique_ptr<MaxMinRates> rates_;
  bool is_outdated_ = true;  // the table, since paths are others
  double now_ = 0;
};

}  // namespace topoopt
