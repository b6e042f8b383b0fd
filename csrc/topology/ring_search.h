// Simulated annealing over unions of a fixed number of rings.

#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "common/random.h"
#include "topology/hop_counts.h"

namespace topoopt {

// The search space. Every ring is a cycle over its members; duplex rings have cables in both
// directions. `links` belong to no ring and may join any two servers; -1 is an unplugged end. Ports
// are not numbered: a server has one per ring end and link end.
//
// With a `symmetry` s > 1 (a divisor of n), the network is invariant under a rotation of all
// servers by n / s. Each ring consists of n / s servers, one of each residue modulo n / s. They
// repeat with rotations by g n / s, with g coprime to s. s = n gives circulant networks, s = 1 any.
// Symmetric networks are fewer but as good, cheaper to search, and load all servers equally.
struct RingUnion {
  int servers = 0;
  int symmetry = 1;
  bool duplex = true;
  std::vector<std::vector<int>> rings;
  std::vector<std::pair<int, int>> links;  // empty if symmetry > 1
};

// Minimises the sum of hops between servers, or with `weights` (per ordered pair, row by row;
// symmetry 1) the weighted sum. An unconnected pair counts n hops; with weights, one hop of all
// pairs together. Moves preserve rings:
//   - reverse (duplex), move or rotate (symmetry) a part of a ring;
//   - swap two members of a ring;
//   - swap ends of two links; one that would join a server to itself is unplugged.
// Equal arguments and calls give equal results.
class RingSearch {
 public:
  static constexpr int kMaxServers = 46340;  // pairs of servers must fit an int

  // Throws std::invalid_argument naming the invalid part of `start` or `weights`.
  RingSearch(RingUnion start, std::vector<int64_t> weights, uint64_t seed);

  // Runs Metropolis steps for `work` word operations; the temperature falls geometrically from
  // `hot` to `cold`, in the unit of `cost`. Stops once the best cost is at most `enough`.
  // Operations are counted instead of timed, so equal calls give equal results. Moves cost more of
  // them if distances are long.
  void anneal(int64_t work, double hot, double cold, int64_t enough = 0);

  int64_t cost() const { return cost_; }
  int64_t bestCost() const { return best_cost_; }
  int64_t accepted() const { return accepted_; }
  int64_t operations() const { return counter_.operations() + moves_ * kMoveWork * servers_; }

  // The best union, in the form of the start.
  RingUnion best() const;

 private:
  // `base` repeats `symmetry` times, each time rotated by `shift` servers.
  struct Cycle {
    std::vector<int> base;
    int shift;
  };
  struct End {
    int server;
    int slot;
  };
  struct FreeLink {
    End from, to;
  };
  struct State {
    std::vector<Cycle> cycles;
    std::vector<FreeLink> links;
  };

  static constexpr int64_t kMoveWork = 16;  // operations per server, besides counting hops

  void check(const RingUnion& start) const;
  void checkRing(const std::vector<int>& ring, const std::string& where) const;
  void checkLink(const std::pair<int, int>& link, const std::string& where) const;
  void checkWeights() const;
  int takeSlot(int server) { return next_slot_[server]++; }
  int moved(int server, int by) const;
  int at(const Cycle& cycle, int position) const;
  void lay(size_t cycle);
  void lay(const FreeLink& link);
  int64_t measure();
  bool changeCycle(size_t cycle);
  bool changeLinks();
  void accept(bool is_better);
  bool keeps(int64_t proposed, double temperature);

  int servers_, symmetry_, orbits_;
  bool duplex_;
  Random random_;
  std::vector<int64_t> weights_;
  std::vector<int> sources_;
  State state_, best_state_;
  std::vector<std::vector<int>> slots_;  // per ring: the first slot at each server
  std::vector<int> next_slot_;
  InLinks in_links_{0, 0};
  HopCounter counter_;
  Cycle saved_;
  std::pair<size_t, size_t> switched_;
  int64_t cost_ = 0;
  int64_t best_cost_ = 0;
  int64_t accepted_ = 0;
  int64_t moves_ = 0;
};

}  // namespace topoopt
