// A planned network as the flow level sees it: edges, routes between servers, rings of groups.

#pragma once

#include <map>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "plan/network.h"
#include "sim/core/path_table.h"
#include "sim/iteration/group_rings.h"

namespace topoopt {

// What stands for the routes of the pairs that have none of their own: strides that sum to the
// target's distance from the source, else the walk to `next_hops[source * servers + target]` and on
// from there. An empty member is no rule.
struct RouteRules {
  std::vector<plan::StrideRoute> by_offset;
  std::vector<int> next_hops;
};

// One flow that stands for all transfers of a ring or of a routed pair.
struct FlowPath {
  int path;
  double share;
  double latency_s;
};

// Of a ring AllReduce whose hops take `hop_s`: data travels 2 (k - 1) consecutive hops of a ring of
// k, each of which adds its latency; the slowest start leaves out the two cheapest neighbouring
// hops of two rounds.
double ringLatency(std::span<const double> hop_s);

// Of gathering or scattering along such a ring: k - 1 hops, all but the cheapest.
double lineLatency(std::span<const double> hop_s);

// One of the parts of an AllReduce on a torus (plan/torus_lines.h): it scatters along the first
// lines, reduces along the second ones, and gathers along the first. `share` is what every hop
// sends in such a phase of each byte of the AllReduce; all lines of a kind move in step.
struct TorusPart {
  FlowPath first;
  FlowPath second;
};

// The ways of an AllReduce among the servers of a group: on rings, or along rows and columns.
class GroupPaths {
 public:
  std::vector<FlowPath> rings;
  std::vector<TorusPart> parts;  // empty: there is no grid

  // Whether an AllReduce of `size_bytes` with the network for itself ends earlier along rows and
  // columns than on rings: the backend takes what was faster.
  bool takesGrid(double size_bytes) const;
  // The size on whose two sides that differs; infinity: there is none.
  double crossingBytes() const;

 private:
  friend class RoutedNetwork;
  // A phase or a ring AllReduce that nothing else disturbs.
  struct Alone {
    double latency_s = 0;
    double s_per_byte = 0;
  };
  Alone on_rings_;
  Alone on_grid_;
};

// Parallel links between the same two servers are one edge with their summed capacity. The
// transfer of a pair is one flow that loads every link of its routes by the routes' weights. All
// hops of a ring AllReduce move in step, so the whole ring is one flow as well.
class RoutedNetwork {
 public:
  // Pairs of servers are numbered by an int.
  static constexpr int kMaxServers = 46340;

  // `links` have `bytes_per_s` and `latency_s` each, whatever their ports. A pair with links, no
  // route and no rule uses its links. Throws std::invalid_argument for a server outside
  // 0..servers-1, a route over a missing link, next hops that are not one of each pair, or a
  // bandwidth or latency that makes no sense. What a rule leads to is checked for the pairs that
  // are asked for.
  RoutedNetwork(int servers, const std::vector<plan::LinkPorts>& links, double bytes_per_s,
                double latency_s, std::vector<plan::Route> routes,
                std::vector<plan::AllReduceGroup> groups, RouteRules rules = {});

  // Each server has one link of `bytes_per_s` into and one out of a switch that never blocks;
  // `latency_s` is that of a whole path through it.
  static RoutedNetwork idealSwitch(int servers, double bytes_per_s, double latency_s);

  // Any network, switches included: `capacity[i]` bytes per second of link i, and what each pair of
  // servers that may exchange bytes loads. Rings are as above. Throws std::invalid_argument for an
  // unknown server or link, a pair that is listed twice, a load or a latency that makes no sense.
  static RoutedNetwork ofPaths(int servers, std::vector<double> capacity,
                               std::vector<PairPath> pairs,
                               std::vector<plan::AllReduceGroup> groups);

  int servers() const { return servers_; }
  const std::vector<double>& capacity() const { return capacity_; }
  const PathTable& paths() const { return paths_; }

  // The flow path from `source` to another server; share is 1. Throws std::invalid_argument if
  // there is no route, or a rule leads over a missing link or in a loop.
  const FlowPath& pair(int source, int target);

  // The group `servers` (ascending, at least two). A ring is one flow path, and its `share` that of
  // the ring. Throws as `pair`.
  const GroupPaths& group(const std::vector<int>& servers);

  // As ringsOfGroup: hops are those of a planned network's routes, elsewhere all alike, and rings
  // go both ways where every link has one in the other direction.
  std::vector<plan::Ring> rings(const std::vector<int>& servers) const;
  // As gridOfGroup.
  plan::Grid grid(const std::vector<int>& servers) const { return gridOfGroup(groups_, servers); }

  // Bytes per link, in the order of `links`, from bytes per edge: parallel links share evenly.
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
  GroupPaths makeGroup(const std::vector<int>& servers);
  double busiest(const std::vector<std::pair<int, double>>& paths) const;

  int servers_;
  bool is_switch_ = false;
  bool both_ways_ = true;  // as ringsOfGroup
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
  std::vector<FlowPath> pair_path_;  // source * servers + target, path -1 until asked for
  std::map<std::vector<int>, GroupPaths> group_paths_;
};

}  // namespace topoopt
