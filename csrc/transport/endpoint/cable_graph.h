// The cables between all ranks, what their ends say of them, and the shortest ways over those that
// are up. Slow directions of cables are left out as long as others join all ranks. Every end counts
// the connections that its cable has had: in generation g it reports that the cable is up, and once
// that it is lost. The newest report of an end counts, whatever way it came; so all ranks see the
// same in the end.

#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "plan/remaining_rings.h"
#include "transport/links/link.h"

namespace topoopt {

// A connection between two ranks of different servers. Its number is its index in a list that all
// ranks have alike.
struct CableEnds {
  plan::LinkPorts link;  // its name, as seen from rank `a`
  int a = 0;
  int b = 0;
  bool duplex = true;  // else only `a` sends
  // Of each direction, in Gb/s; 1 for all where the plan's are not known, 0 for a connection over
  // cables of others.
  double rate = 1.0;
};

// The state of a cable, as reported by its end at rank `end`.
struct CableReport {
  int cable = 0;
  int end = 0;
  uint64_t generation = 1;
  bool up = true;
  Loss loss = Loss::kClosed;  // if it is not up

  // Of one end, later reports have larger numbers.
  uint64_t number() const { return 2 * generation + (up ? 0 : 1); }
};

// A measurement of the end at rank `end`: the part of the usual rate that its direction carries.
struct CableSpeed {
  int cable = 0;
  int end = 0;
  uint64_t number = 0;  // of one end, later reports have larger numbers
  double speed = 1.0;   // in 0..1, not 0
};

class CableGraph {
 public:
  // `servers` names the server of each rank, whose ranks reach each other directly; empty if all
  // are different. Throws std::invalid_argument.
  CableGraph(int rank, int size, std::vector<CableEnds> cables, const std::vector<int>& servers);

  const std::vector<CableEnds>& cables() const { return cables_; }

  // False if it is not newer than what was known, or not possible.
  bool take(const CableReport& report);
  bool takeSpeed(const CableSpeed& report);
  // All that is known beyond the beginning.
  std::vector<CableReport> reports() const;
  std::vector<CableSpeed> speeds() const;

  // The newest report of the end at `rank`: CableReport::number().
  uint64_t numberAt(int cable, int rank) const;
  bool up(int cable) const;
  // Whether ways lead over what rank `sender` sends on the cable.
  bool carries(int cable, int sender) const;
  bool allUp() const { return down_ == 0; }
  // All are up and none is slow.
  bool intact() const;
  int size() const { return size_; }
  // Between servers, over what ways lead over, at the rates that were measured.
  std::vector<LinkLeft> linksLeft() const;
  // The same for the intact network, on any thread.
  std::vector<LinkLeft> plannedLinks() const;
  // A name of the rank's server for linksLeft().
  int serverOf(int rank) const { return servers_[rank]; }
  // Whether a way can lead from one rank to the next one directly.
  bool linked(int source, int target) const;

  // The rank after this one on a shortest way to `target`, -1 if there is none.
  int nextHop(int target) const { return next_hop_[target]; }
  // Ranks that this one cannot reach, or that cannot reach it; ascending.
  const std::vector<int>& unreachable() const { return unreachable_; }

  // The ranks at the far end of the lost cables: those whose hosts have closed all their cables to
  // this side, as when a process ends; and those that may still run.
  struct Cut {
    std::vector<int> gone;
    std::vector<int> silent;
    std::string cables;  // some names of them, and how they were lost

    // No other rank than those can be why the cables are lost.
    bool isDeath() const { return !gone.empty() && silent.empty(); }
  };
  Cut cut() const;

 private:
  struct End {
    uint64_t number = 2;
    Loss loss = Loss::kClosed;
    uint64_t speed_number = 0;
    double speed = 1.0;
  };
  struct Hop {
    int rank;
    int cable;  // kNoCable inside a server
  };

  // `speed` of a cable's direction from its end at rank `a` or at rank `b`; 0: left out.
  template <typename Speed>
  std::vector<LinkLeft> linksAt(Speed speed) const;
  std::vector<int> distances(bool from_here) const;
  void findWays();
  void findNextHops(const std::vector<int>& from);
  End* endOf(int cable, int rank);

  const int rank_;
  const int size_;
  const std::vector<CableEnds> cables_;
  std::vector<int> servers_;
  std::vector<std::vector<Hop>> hops_from_;
  std::vector<std::vector<Hop>> hops_to_;
  std::vector<std::vector<int>> members_;  // of each rank's server, without it
  std::vector<End> ends_;                  // two per cable
  size_t down_ = 0;
  bool avoids_slow_ = false;
  std::vector<int> next_hop_;
  std::vector<int> unreachable_;
};

// "closed by the other end" and so on.
const char* textOf(Loss loss);

}  // namespace topoopt
