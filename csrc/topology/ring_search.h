// Simulated annealing over unions of rings: the links of a network whose rings are given in number.

#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "common/random.h"
#include "topology/hop_counts.h"

namespace topoopt {

// The search space. Every ring is a cycle over its members; on duplex its cables join neighbours in
// both directions. `links` belong to no ring and may join any two servers; -1 is an end that no
// cable is plugged into. Ports are not numbered here: a server has one per ring end and link end.
//
// With a `symmetry` s > 1 (a divisor of n), the network stays the same when every server moves on
// by n / s: each ring is then n / s servers, one of each residue modulo n / s, which repeat moved
// on by g n / s, with g coprime to s. s = n gives circulant networks, s = 1 any. Fewer networks,
// but good ones are as good, a step costs less, and all servers see the same load.
struct RingUnion {
  int servers = 0;
  int symmetry = 1;
  bool duplex = true;
  std::vector<std::vector<int>> rings;
  std::vector<std::pair<int, int>> links;  // none if symmetry > 1
};

// Minimises the hops between servers: their sum, or with `weights` (per ordered pair, row by row;
// symmetry 1) their weighted sum. A pair without a path counts n hops; with weights, one hop of all
// pairs together. Moves keep every ring a ring:
//   - a part of a ring is reversed (duplex), moved elsewhere on it, or turned by the symmetry;
//   - two members of a ring change places;
//   - two links exchange their ends; one that would join a server to itself is unplugged.
// The same arguments and calls give the same result.
class RingSearch {
 public:
  static constexpr int kMaxServers = 46340;  // pairs of servers are numbered by an int

  // Throws std::invalid_argument naming what of `start` or `weights` is wrong.
  RingSearch(RingUnion start, std::vector<int64_t> weights, uint64_t seed);

  // Judges moves by Metropolis' rule until `work` operations on words are done; the temperature
  // falls geometrically from `hot` to `cold` meanwhile, both in the unit of `cost`. Ends as soon as
  // the best cost is `enough` or less. Operations are counted and not timed, so that the same call
  // does the same everywhere; where servers are many hops apart a move costs more of them.
  void anneal(int64_t work, double hot, double cold, int64_t enough = 0);

  int64_t cost() const { return cost_; }
  int64_t bestCost() const { return best_cost_; }
  int64_t accepted() const { return accepted_; }
  int64_t operations() const { return counter_.operations() + moves_ * kMoveWork * servers_; }

  // The best union seen, in the form of the start.
  RingUnion best() const;

 private:
  // `base` repeats `symmetry` times, each time moved on by `shift` servers.
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

  static constexpr int64_t kMoveWork = 16;  // operations per server, beside those of counting hops

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
