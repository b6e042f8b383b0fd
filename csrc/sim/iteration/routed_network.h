// A planned network at flow level: edges, routes between servers, rings of groups.

#pragma once

#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "plan/network.h"
#include "sim/core/path_table.h"
#include "sim/iteration/group_rings.h"
#include "sim/iteration/group_schedules.h"

namespace topoopt {

// Rules for pairs without routes: strides that sum to the target's distance, else the walk by
// `next_hops[source * servers + target]`. An empty member is no rule.
struct RouteRules {
  std::vector<plan::StrideRoute> by_offset;
  std::vector<int> next_hops;
};

// One flow for all transfers of a ring or a routed pair.
struct FlowPath {
  int path;
  double share;
  double latency_s;
};

// Latency of a ring AllReduce with hop latencies `hop_s`: data travels 2 (k - 1) consecutive hops
// of a ring of k. The slowest start avoids the two cheapest neighbouring hops of two rounds.
double ringLatency(std::span<const double> hop_s);

// The same for gathering or scattering: k - 1 hops, all but the cheapest.
double lineLatency(std::span<const double> hop_s);

// A part of an AllReduce on a torus (plan/torus_lines.h): scatter along the first lines, reduce
// along the second, gather along the first. `share` is a hop's bytes per phase, per byte of the
// AllReduce; all lines of a kind move in step.
struct TorusPart {
  FlowPath first;
  FlowPath second;
};

// One way to run an AllReduce: on rings, over a schedule of messages, or along rows and columns.
struct AllReduceFlows {
  std::vector<FlowPath> flows{};                   // `share`: bytes per byte of the AllReduce
  std::vector<plan::Ring> rings{};                 // of the flows, at once; or
  std::shared_ptr<const LinkSchedule> schedule{};  // of the flows, one after the other
  std::vector<TorusPart> parts{};                  // instead of flows
  // Undisturbed.
  double latency_s = 0;
  double s_per_byte = 0;
  // Before the flows: costs of messages, and steps that wait for whole messages.
  double wait_s = 0;
  double wait_s_per_byte = 0;

  double waitSeconds(double size_bytes) const { return wait_s + size_bytes * wait_s_per_byte; }
  double seconds(double size_bytes) const {
    return waitSeconds(size_bytes) + latency_s + size_bytes * s_per_byte;
  }
};

// The alternatives of a group's AllReduce. On direct networks with schedules, the backend's choice
// for each size. Else the fastest, if undisturbed, of its rings, rows and columns and, with
// schedules, exchanges; the first of equal ones.
class GroupPaths {
 public:
  // The sizes at which the choice changes, ascending. Sizes up to such a size are below it.
  std::vector<double> crossings() const;
  // The name of the backend's choice; empty if there is none.
  std::string algorithm(double size_bytes) const;

 private:
  friend class RoutedNetwork;
  size_t choiceAt(double size_bytes) const;

  std::vector<std::optional<AllReduceFlows>> all_;  // nullopt: not built yet
  std::shared_ptr<GroupChoices> choices_;           // of all_; or nullptr
  std::map<Algorithm, AllReduceFlows> unwaited_;    // flows of several choices
};

// Parallel links are one edge with their total capacity. A pair's transfer is one flow that loads
// its routes by weight. A ring AllReduce moves in step, so it is also one flow.
class RoutedNetwork {
 public:
  // Pairs of servers must fit an int.
  static constexpr int kMaxServers = 46340;

  // Each of `links` has `bytes_per_s` and `latency_s`. A pair without routes or rules uses its
  // links. Throws std::invalid_argument for a server outside 0..servers-1, a route over a missing
  // link, missing next hops, or an invalid bandwidth or latency. Rules are checked on use.
  RoutedNetwork(int servers, const std::vector<plan::LinkPorts>& links, double bytes_per_s,
                double latency_s, std::vector<plan::Route> routes,
                std::vector<plan::AllReduceGroup> groups, RouteRules rules = {});

  // Each server has one link of `bytes_per_s` into and one out of a non-blocking switch;
  // `latency_s` is for the whole path.
  static RoutedNetwork idealSwitch(int servers, double bytes_per_s, double latency_s);

  // Any network with switches: link i has `capacity[i]` bytes per second, and each pair that may
  // exchange bytes has a load. Rings are as above. Throws std::invalid_argument for an unknown
  // server or link, a duplicate pair, or an invalid load or latency.
  static RoutedNetwork ofPaths(int servers, std::vector<double> capacity,
                               std::vector<PairPath> pairs,
                               std::vector<plan::AllReduceGroup> groups);

  // Groups choose as GroupPaths with schedules from now on. Link i goes from node `ends[i].first`
  // to `ends[i].second`; nodes from servers() on are switches. A message over a link takes the
  // latency of `cost`, whose rate of links is that of the slowest one if it is 0. All groups take
  // the `forced` algorithm where they have it; they have so many ranks on each server. Throws
  // std::invalid_argument unless there is one pair per link, or for an invalid latency.
  void addSchedules(const std::vector<std::pair<int, int>>& ends, CostModel cost,
                    std::optional<Algorithm> forced, int ranks_per_server);
  bool hasSchedules() const { return schedules_ != nullptr; }

  int servers() const { return servers_; }
  const std::vector<double>& capacity() const { return capacity_; }
  const PathTable& paths() const { return paths_; }

  // The flow path between two servers, with share 1. Throws std::invalid_argument without a route,
  // or if a rule uses a missing link or loops.
  const FlowPath& pair(int source, int target);

  // The group `servers` (ascending, at least two). Throws as `pair`.
  const GroupPaths& group(const std::vector<int>& servers) { return groupPaths(servers); }
  // Its choice for `size_bytes`. Each ring is one flow path, and so is each pass of a schedule.
  // Throws as `pair`.
  const AllReduceFlows& allReduce(const std::vector<int>& servers, double size_bytes);

  // As ringsOfGroup: hops are of planned routes, else all equal; rings go both ways if every link
  // has a reverse.
  std::vector<plan::Ring> rings(const std::vector<int>& servers) const;
  // As gridOfGroup.
  plan::Grid grid(const std::vector<int>& servers) const { return gridOfGroup(groups_, servers); }

  // Bytes per link of one collective on `bytes` bytes of all blocks together, among members on
  // these servers (ascending), as the backend runs it; `root` is a member. As linkBytes(). Throws
  // as `pair`, and std::invalid_argument without schedules over links.
  std::vector<double> collectiveLinkBytes(Collective collective, const std::vector<int>& members,
                                          size_t bytes, int root);
  // Bytes per link of one AllReduce of `size_bytes`, as linkBytes(). Throws as `pair`.
  std::vector<double> allReduceLinkBytes(const std::vector<int>& servers, double size_bytes);

  // Bytes per link, in the order of `links`: parallel links share an edge evenly.
  std::vector<double> linkBytes(const std::vector<double>& edge_bytes) const;

 private:
  explicit RoutedNetwork(int servers) : servers_(servers) {}
  void addLinks(const std::vector<plan::LinkPorts>& links, double bytes_per_s);
  void setGroups(std::vector<plan::AllReduceGroup> groups);
  void checkGrid(size_t index) const;
  void setRules(RouteRules rules);
  void checkServer(const char* where, size_t index, int server) const;
  int edge(int source, int target) const;
  int hops(int source, int target) const;
  size_t addRoutes(int source, int target, std::vector<LinkUse>& uses) const;
  plan::Route walk(int source, int target) const;
  FlowPath makePair(int source, int target);
  FlowPath makeRing(const plan::Ring& ring);
  FlowPath makeLines(const std::vector<std::vector<int>>& lines, double share, bool both);
  std::vector<TorusPart> makeParts(const plan::Grid& grid);
  AllReduceFlows onRings(std::vector<plan::Ring> rings);
  AllReduceFlows onGrid(const plan::Grid& grid);
  AllReduceFlows onLinks(std::shared_ptr<const LinkSchedule> schedule);
  AllReduceFlows chosen(const std::vector<int>& servers, GroupPaths& paths, size_t place);
  std::pair<std::vector<LinkUse>, double> usesOf(const LinkPass& pass, bool over_routes);
  double addMessage(const LinkShare& send, std::vector<LinkUse>& uses);
  GroupPaths makeGroup(const std::vector<int>& servers);
  GroupPaths& groupPaths(const std::vector<int>& servers);
  double busiest(const std::vector<std::pair<int, double>>& paths) const;

  int servers_;
  bool is_switch_ = false;
  bool both_ways_ = true;     // for ringsOfGroup
  bool lists_pairs_ = false;  // no other pairs have routes
  double latency_s_ = 0;
  std::vector<double> capacity_;  // per edge
  std::vector<int> parallel_;     // per edge: links
  std::vector<int> edge_of_link_;
  std::vector<int> edge_of_pair_;  // source * servers + target, -1 without a link
  std::unordered_map<int, std::vector<plan::Route>> routes_;  // of source * servers + target
  std::vector<std::vector<plan::StrideRoute>>
      by_offset_;  // (target - source) modulo servers; or empty
  std::vector<int> next_hops_;
  std::vector<plan::AllReduceGroup> groups_;
  PathTable paths_;
  std::vector<FlowPath> pair_path_;  // source * servers + target, path -1: not computed
  std::map<std::vector<int>, GroupPaths> group_paths_;
  std::shared_ptr<GroupSchedules> schedules_;                         // of all copies
  std::map<std::pair<int, int>, std::vector<LinkUse>> uses_of_ends_;  // of a schedule's messages
  int ranks_per_server_ = 1;
  CostModel cost_;  // of schedules
};

}  // namespace topoopt
