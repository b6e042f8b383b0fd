// AllReduce rings with max-min fair sharing of links, and paths that change at run time.

#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "sim/core/path_table.h"
#include "sim/flow/max_min_rates.h"

namespace topoopt {

// Links in order.
using LinkPath = std::vector<int>;

// Statistics of a ring's ended flows: a flow is one hop in one round.
struct EndedFlows {
  int64_t count = 0;
  double seconds = 0;      // sum of completion times
  double bytes_per_s = 0;  // sum of mean rates
  double bytes = 0;
};

// Fluid flows. A ring has `rounds` rounds; in each, every hop sends `size_bytes`, and the next
// round begins when all have finished.
class RingTransfers {
 public:
  // `capacity` is in bytes per second. Throws std::invalid_argument unless all are positive.
  explicit RingTransfers(std::vector<double> capacity);

  // Starts a ring and returns its id. Throws std::invalid_argument for an empty path or unknown
  // link, a size that is not positive, or fewer than one round.
  int start(std::vector<LinkPath> hops, double size_bytes, int rounds);

  // Moves the hops of `ring` to other paths; sent bytes stay sent. Throws std::invalid_argument for
  // an ended ring, or unless there is one path per hop.
  void reroute(int ring, std::vector<LinkPath> hops);

  // Advances until rings end or `until_s`; returns the ended rings in ascending order.
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
  bool is_outdated_ = true;  // paths have changed
  double now_ = 0;
};

}  // namespace topoopt
