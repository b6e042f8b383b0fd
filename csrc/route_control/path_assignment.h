// The path of every flow in a network with arriving and departing flows: a controller's decisions
// after every change. Every flow demands 1.

#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "route_control/switched_paths.h"

namespace topoopt {

enum class PathScheme { kGreedy, kEcmp, kAnnealing, kLocalSearch };

// Throws std::invalid_argument for an unknown name.
PathScheme pathScheme(const std::string& name);

// Directed links between switches; 0 .. tors - 1 have hosts. `spines` is 0 unless all links are
// between ToRs and spines.
struct SwitchGraph {
  int tors = 0;
  int spines = 0;
  std::vector<std::pair<int, int>> links;
  std::vector<double> capacity;
};

// A change: flows end, start or change kind, and links fail or recover.
struct AssignmentChange {
  std::vector<int> ended;
  std::vector<int> started;                // kind of each
  std::vector<std::pair<int, int>> kinds;  // flow, its new kind
  std::optional<std::vector<int>> dead;    // the complete new set of dead links
};

// The result of a change. Paths are numbered over all kinds, -1: none; rates are published ones.
struct AssignmentResult {
  std::vector<int> started;                // ids of the new flows
  std::vector<std::pair<int, int>> moved;  // flow, its new path
  std::vector<std::pair<int, double>> rates;
};

// Flows have ids, which are reused, and an order of their starts. Equal changes lead to equal
// paths, independent of the ids of flows and kinds.
class PathAssignment {
 public:
  // With `limits_rates`, results contain max-min fair shares: of new flows, and those that differ
  // from the last published share by more than `kRateStep`.
  PathAssignment(SwitchGraph graph, PathScheme scheme, bool limits_rates);

  static constexpr double kRateStep = 0.05;

  // Adds a kind of flows: between two ToRs, over one of `paths` (lists of links). Returns its id.
  int addKind(int source, int target, const std::vector<std::vector<int>>& paths);
  int firstPath(int kind) const { return kinds_->table.first_path.at(kind); }

  // Kinds without a live path if exactly `dead` links are dead.
  std::vector<int> cutOff(const std::vector<int>& dead) const;

  // Restores flows with kinds, paths (-1: none) and published rates (-1: none), in order, without
  // decisions. Returns their ids.
  std::vector<int> restore(const std::vector<int>& kinds, const std::vector<int>& paths,
                           const std::vector<double>& rates, std::vector<int> dead);

  // New flows, and those whose path is dead or not of their kind, take the least congested path, in
  // order. If a link is then more congested than necessary, the scheme reassigns all flows, and the
  // result is used if its maximum is lower. `local-search` first tries chains of changes, which
  // move few flows. `threads` does not affect the result.
  AssignmentResult change(const AssignmentChange& change, int threads);

  // Applies the result of an equal assignment's equal change.
  void adopt(const AssignmentChange& change, const AssignmentResult& result);

  // Flows on each link.
  const std::vector<int>& loads() const { return loads_; }
  // Max-min fair share of each flow by id; 0 without a path.
  std::vector<double> shares() const;

 private:
  struct Kinds {
    std::vector<int> source, target;
    SwitchedPaths table;
    std::vector<int> spine;  // of a two-link path
  };
  // Live paths, renumbered.
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
  bool alike_;                             // all capacities are equal
  std::shared_ptr<Kinds> kinds_;           // shared with copies, read-only
  std::shared_ptr<const LivePaths> live_;  // null: not computed
  std::vector<char> dead_;                 // per link
  std::vector<int> loads_;                 // per link
  std::vector<int> count_;                 // flows per kind

  // Per flow; kind -1: free id.
  std::vector<int> kind_, path_, place_;
  std::vector<double> rate_;
  std::vector<int> free_, order_;  // order_ has -1 for ended flows
  int holes_ = 0;
};

}  // namespace topoopt
