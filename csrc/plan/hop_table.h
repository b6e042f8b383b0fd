// Links on the shortest route between each two servers of a network. One table serves all groups of
// a job.

#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "plan/network.h"

namespace topoopt {

class HopTable {
 public:
  // Row by row, from the row's server to the column's.
  HopTable(int servers, std::vector<uint16_t> hops);

  // From a network's routes, as torch_topoopt.plan.RouteTable has them: `listed`, else `by_offset`,
  // else the walks along next_hops[source][target]; a pair that none of them serves has its link,
  // or 0. Throws std::invalid_argument, naming what is wrong.
  static HopTable ofRoutes(int servers, const std::vector<plan::LinkPorts>& links,
                           const std::vector<plan::StrideRoute>& by_offset,
                           const std::vector<std::vector<int>>& next_hops,
                           const std::vector<plan::Route>& listed);

  int servers() const { return servers_; }
  int at(int source, int target) const { return hops_[index(source, target)]; }
  // Throws std::invalid_argument for a server that there is not.
  int checkedAt(int source, int target) const;

 private:
  size_t index(int source, int target) const {
    return static_cast<size_t>(source) * static_cast<size_t>(servers_) +
           static_cast<size_t>(target);
  }
  void check(const char* field, int server) const;
  void addWalks(const std::vector<std::vector<int>>& next_hops);
  void addStrides(const std::vector<plan::StrideRoute>& by_offset);
  void addListed(const std::vector<plan::Route>& listed);

  int servers_;
  std::vector<uint16_t> hops_;
};

}  // namespace topoopt
