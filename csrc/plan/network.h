// The network half of a Plan, as torch_topoopt.plan.network and .routes have it: the same names,
// the same fields.

#pragma once

#include <vector>

namespace topoopt::plan {

// A directed connection from a server's port to another server's port. Between two ranks of one
// server there are no ports (-1), and the ends are ranks.
struct LinkPorts {
  int source = -1;
  int source_port = -1;
  int target = -1;
  int target_port = -1;
};

// A cyclic order of a group's servers, and the fraction of each AllReduce's bytes that it carries.
// In a process group, a server stands for its first member, and is named by that.
struct Ring {
  std::vector<int> servers;
  double share = 1.0;

  bool operator==(const Ring&) const = default;
};

// Rows of servers that form a two-dimensional torus; every row has as many. Empty: none.
using Grid = std::vector<std::vector<int>>;

// The servers of one AllReduce, and the rings that carry it. Shares sum to 1. Where the servers
// form a torus it may go along the rows and columns of `grid` instead.
struct AllReduceGroup {
  std::vector<int> servers;
  std::vector<Ring> rings;
  Grid grid{};
};

// Servers from source to destination, and the part of the pair's bytes that takes this route. In a
// process group of several ranks per server, it is a list of ranks.
struct Route {
  std::vector<int> servers;
  double weight = 1.0;
};

// A route from every server: s, s + strides[0], s + strides[0] + strides[1] ... modulo their
// number.
struct StrideRoute {
  std::vector<int> strides;
  double weight = 1.0;
};

}  // namespace topoopt::plan
