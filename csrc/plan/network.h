// The network part of a Plan, with the names and fields of torch_topoopt.plan.network and .routes.

#pragma once

#include <vector>

namespace topoopt::plan {

// A directed connection between ports of two servers. Between ranks of one server, the ports are -1
// and the ends are ranks.
struct LinkPorts {
  int source = -1;
  int source_port = -1;
  int target = -1;
  int target_port = -1;
};

// A cyclic order of a group's servers, and its fraction of each AllReduce's bytes. In a process
// group, a server is identified by its first member.
struct Ring {
  std::vector<int> servers;
  double share = 1.0;

  bool operator==(const Ring&) const = default;
};

// Rows of servers that form a two-dimensional torus, of equal length; empty: no torus.
using Grid = std::vector<std::vector<int>>;

// The servers of an AllReduce and its rings, with shares that sum to 1. On a torus it may use the
// rows and columns of `grid` instead.
struct AllReduceGroup {
  std::vector<int> servers;
  std::vector<Ring> rings;
  Grid grid{};
};

// A path from source to destination, and the fraction of the pair's bytes that it carries. In a
// process group with several ranks per server, `servers` lists ranks.
struct Route {
  std::vector<int> servers;
  double weight = 1.0;
};

// A route from every server: s, s + strides[0], s + strides[0] + strides[1] ... modulo the number
// of servers.
struct StrideRoute {
  std::vector<int> strides;
  double weight = 1.0;
};

}  // namespace topoopt::plan
