// A group as its schedules see it: its members, the servers that hold them, and the rings between
// servers. Members are numbered as in the group, 0..size-1.

#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "plan/hop_table.h"
#include "plan/network.h"

namespace topoopt {

class GroupLayout {
 public:
  // `servers` names the server of each member; empty: member i is on server i. `hops` is of the
  // whole network; nullptr if all servers are neighbours. Rings list the leaders of all servers,
  // each once, and so does the grid, if there is one. Without rings, a group on one server gets a
  // ring of one. Throws std::invalid_argument, naming what is wrong.
  GroupLayout(int size, std::vector<plan::Ring> rings, std::vector<int> servers = {},
              std::shared_ptr<const HopTable> hops = nullptr, plan::Grid grid = {});

  // The same group over other rings, because links are lost or slow: it has no grid, whose links
  // those are. Throws as the constructor does.
  GroupLayout over(std::vector<plan::Ring> rings) const;

  int size() const { return size_; }
  const std::vector<plan::Ring>& rings() const { return rings_; }
  // Those that the group was made with. The orders of what goes over no ring follow these, so that
  // its sums have the same bits whatever becomes of cables.
  const std::vector<plan::Ring>& plannedRings() const { return planned_; }

  // The leaders of all servers by rows and columns of a torus; empty if the group is none.
  const plan::Grid& grid() const { return grid_; }

  // The first member of each server, ascending.
  const std::vector<int>& leaders() const { return leaders_; }
  // The first member of this member's server.
  int leaderOf(int member) const { return leader_of_[member]; }
  // All other members of a leader's server, ascending; empty for a member that is no leader.
  const std::vector<int>& othersOf(int leader) const { return others_of_[leader]; }
  // The most members beside the leader that a server holds.
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
  std::vector<int> servers_;
  const std::shared_ptr<const HopTable> hops_;
  std::vector<int> leaders_;
  std::vector<int> leader_of_;
  std::vector<std::vector<int>> others_of_;
  size_t most_others_ = 0;
};

// What the bytes of a group are counted as: each ring, the two trees, what is sent directly, and,
// where there is a grid, what begins along its rows and along its columns.
struct Parts {
  int trees;
  int direct;
  int torus;
  int count;
};
inline Parts partsOf(const GroupLayout& layout) {
  const int rings = static_cast<int>(layout.rings().size());
  return {rings, rings + 2, rings + 3, rings + (layout.grid().empty() ? 3 : 5)};
}

}  // namespace topoopt
