// The members of a group, their servers, and the rings between servers, as schedules use them.
// Members are numbered 0..size-1.

#pragma once

#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "plan/gather_plan.h"
#include "plan/hop_table.h"
#include "plan/network.h"

namespace topoopt {

// The paths of collectives between the servers of a group. Links join places in
// GroupLayout::leaders(), with rates relative to the slowest link of the intact network.
struct CollectivePaths {
  std::vector<plan::Ring> rings{};
  std::vector<LinkSet> link_sets{};

  bool operator==(const CollectivePaths&) const = default;
};

// Whether each of the places 0..places-1 reaches all others. Throws std::invalid_argument for links
// between other places, and for rates that are not positive.
bool joinsAll(int places, const LinkSet& links);

class GroupLayout {
 public:
  // `servers` is the server of each member; empty: member i is on server i. `hops` covers the whole
  // network; nullptr: all servers are neighbours. Rings and the optional grid list the leaders of
  // all servers, each once. A group on one server without rings gets a ring of one. Throws
  // std::invalid_argument naming the fault.
  GroupLayout(int size, std::vector<plan::Ring> rings, std::vector<int> servers = {},
              std::shared_ptr<const HopTable> hops = nullptr, plan::Grid grid = {});

  // The same group over other paths after a loss or slowdown of links, without the grid. Throws as
  // the constructor.
  GroupLayout over(CollectivePaths paths) const;

  // See CollectivePaths: the alternatives that join all servers.
  const std::vector<LinkSet>& linkSets() const { return link_sets_; }
  // The first of them; empty if there is none.
  const LinkSet& links() const;
  // Omits sets that do not join all servers. Throws as joinsAll().
  void setLinkSets(std::vector<LinkSet> sets);
  void setLinks(LinkSet links) { setLinkSets({std::move(links)}); }

  // The load of the busiest link, as busiestLink(), in a group of some servers: of the first
  // planned ring with all data, of all rings, and of a message between each pair. 0: not known.
  struct RouteLoads {
    double first_ring = 0;
    double rings = 0;
    double pairs = 0;
  };
  const RouteLoads& routeLoads() const { return route_loads_; }
  void setRouteLoads(const RouteLoads& loads) { route_loads_ = loads; }

  int size() const { return size_; }
  const std::vector<plan::Ring>& rings() const { return rings_; }
  // The original rings. Algorithms without rings order members by them, so that sums have the same
  // bits whatever happens to cables.
  const std::vector<plan::Ring>& plannedRings() const { return planned_; }

  // The leaders of all servers as rows and columns of a torus; empty: no torus.
  const plan::Grid& grid() const { return grid_; }

  // The first member of each server, ascending.
  const std::vector<int>& leaders() const { return leaders_; }
  // The first member of this member's server.
  int leaderOf(int member) const { return leader_of_[member]; }
  // The index of this member's server in leaders().
  int placeOf(int member) const { return place_of_[member]; }
  // All other members of a leader's server, ascending; empty unless `leader` is one.
  const std::vector<int>& othersOf(int leader) const { return others_of_[leader]; }
  // The maximum number of members per server, without the leader.
  size_t mostOthers() const { return most_others_; }

  // Links from one member to another; 0 inside a server.
  int hops(int source, int target) const {
    if (leader_of_[source] == leader_of_[target]) return 0;
    return hops_ ? hops_->at(servers_[source], servers_[target]) : 1;
  }

 private:
  void checkServers() const;
  void checkRings() const;
  void checkGrid() const;

  const int size_;
  std::vector<plan::Ring> rings_;
  std::vector<plan::Ring> planned_;
  plan::Grid grid_;
  std::vector<LinkSet> link_sets_;
  RouteLoads route_loads_;
  std::vector<int> servers_;
  const std::shared_ptr<const HopTable> hops_;
  std::vector<int> leaders_;
  std::vector<int> leader_of_;
  std::vector<int> place_of_;
  std::vector<std::vector<int>> others_of_;
  size_t most_others_ = 0;
};

// Traffic counters of a group: each ring, the two trees, direct messages, schedules over the graph
// of links, and, with a grid, the parts that start along rows and those along columns.
struct Parts {
  int trees;
  int direct;
  int graph;
  int torus;
  int count;
};
inline Parts partsOf(const GroupLayout& layout) {
  const int rings = static_cast<int>(layout.rings().size());
  return {rings, rings + 2, rings + 3, rings + 4, rings + (layout.grid().empty() ? 4 : 6)};
}

}  // namespace topoopt
