// The flows of a network that come and go, and the path of each: what a controller decides after
// every change. Every flow demands 1.

#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "route_control/switched_paths.h"

namespace topoopt {

enum class PathScheme { kGreedy, kEcmp, kAnnealing, kOurs };

// Throws std::invalid_argument for a name that is none.
PathScheme pathScheme(const std::string& name);

// Directed links between switches; 0 .. tors - 1 are those with hosts. `spines` is 0 where not all
// links are between these and others.
struct SwitchGraph {
  int tors = 0;
  int spines = 0;
  std::vector<std::pair<int, int>> links;
  std::vector<double> capacity;
};

// What a change does: flows end and start, may take other paths, and links die and are back.
struct AssignmentChange {
  std::vector<int> ended;
  std::vector<int> started;                // the kind of each
  std::vector<std::pair<int, int>> kinds;  // flow, its kind from now on
  std::optional<std::vector<int>> dead;    // all links that are dead from now on
};

// What becomes of it. Paths are numbers over all kinds, -1 is none; rates are published ones.
struct AssignmentResult {
  std::vector<int> started;                // numbers of the new flows
  std::vector<std::pair<int, int>> moved;  // flow, its path from now on
  std::vector<std::pair<int, double>> rates;
};

// Flows have numbers, which are used again, and an order: the one in which they started. The same
// changes lead to the same paths, whatever the numbers of flows and kinds are.
class PathAssignment {
 public:
  // With `limits_rates`, results have the max-min fair shares of flows: of new ones, and where they
  // are more than `kRateStep` off the one that was published last.
  PathAssignment(SwitchGraph graph, PathScheme scheme, bool limits_rates);

  static constexpr double kRateStep = 0.05;

  // A kind of flows: between two ToRs, over one of `paths`, which are lists of links. Its number.
  int addKind(int source, int target, const std::vector<std::vector<int>>& paths);
  int firstPath(int kind) const { return kinds_->table.first_path.at(kind); }

  // Kinds that would have no live path with exactly `dead` links dead.
  std::vector<int> cutOff(const std::vector<int>& dead) const;

  // Flows as they were: their kinds, paths (-1: none) and published rates (-1: none), in order.
  // Takes no decision. Returns their numbers.
  std::vector<int> restore(const std::vector<int>& kinds, const std::vector<int>& paths,
                           const std::vector<double>& rates, std::vector<int> dead);

  // New flows, and those whose path is dead or not one of their kind any more, take the least
  // congested one, in order. If some link is more congested than it has to be then, the scheme
  // assigns all flows anew, which is taken where its most congested link has less; `ours` first
  // looks for chains of changes, which move few flows. `threads` changes nothing.
  AssignmentResult change(const AssignmentChange& change, int threads);

  // The same, with the result of an equal assignment's equal change.
  void adopt(const AssignmentChange& change, const AssignmentResult& result);

  // Flows on each link.
  const std::vector<int>& loads() const { return loads_; }
  // Of each flow by its number its max-min fair share; 0 where it has no path.
  std::vector<double> shares() const;

 private:
  struct Kinds {
    std::vector<int> source, target;
    SwitchedPaths table;
    std::vector<int> spine;  // of a path of two links
  };
  // Live paths by other numbers.
  struct LivePaths {
    SwitchedPaths table;
    std::vector<int> from_full, to_full;
  };

  std::vector<int> takeIn(const AssignmentChange& change);
  int begin(int kind);
  void end(int flow);
  void setKind(int flow, int kind);
  void put(int flow, int path);
  bool isLive(int path) const;
  const LivePaths& live();
  void fill();
  void findBetter(int threads);
  void checkFlow(int flow) const;
  void checkKind(int kind) const;

  double most() const;
  double mostOf(const std::vector<int>& paths) const;
  double bound();
  std::vector<int> liveSpines() const;
  PathChoice anew(const std::vector<RoutedFlow>& flows, const std::vector<int>& numbers,
                  double bound, int threads);
  PathChoice coloured(const std::vector<RoutedFlow>& flows, const std::vector<int>& spines);
  PathChoice hashed(const std::vector<RoutedFlow>& flows);
  void publishRates(AssignmentResult& result);

  SwitchGraph graph_;
  PathScheme scheme_;
  bool limits_rates_;
  bool alike_;                             // all capacities
  std::shared_ptr<Kinds> kinds_;           // shared with copies, which do not change it
  std::shared_ptr<const LivePaths> live_;  // null: to be found
  std::vector<char> dead_;                 // per link
  std::vector<int> loads_;                 // per link
  std::vector<int> count_;                 // flows of each kind

  // Per flow; kind -1: the number is free.
  std::vector<int> kind_, path_, place_;
  std::vector<double> rate_;
  std::vector<int> free_, order_;  // order_ has -1 where a flow has ended
  int holes_ = 0;
};

}  // namespace topoopt
