// The length in links of the shortest route between any two servers, shared by all groups of a job.

#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "plan/network.h"

namespace topoopt {

class HopTable {
 public:
  // Row-major, from the row's server to the column's.
  HopTable(int servers, std::vector<uint16_t> hops);

  // From routes as in torch_topoopt.plan.RouteTable: `listed`, else `by_offset`, else walks along
  // next_hops[source][target]; other pairs use their link, or 0. Throws std::invalid_argument
  // naming the fault.
  static HopTable ofRoutes(int servers, const std::vector<plan::LinkPorts>& links,
                           const std::vector<plan::StrideRoute>& by_offset,
                           const std::vector<std::vector<int>>& next_hops,
                           const std::vector<plan::Route>& listed);

  int servers() const { return servers_; }
  int at(int source, int target) const { return hops_[index(source, target)]; }

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
