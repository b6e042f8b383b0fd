// Many ranks in one process: each has links of the same strides.

#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "collectives/group/group.h"
#include "support/network.h"

namespace topoopt {

struct ManyRanksOptions {
  int size = 8;
  std::vector<int> strides{1};  // of duplex cables
  std::vector<int> offsets{};   // from source to target, of the pairs that have routes; empty: all
  EndpointConfig endpoint{};    // but for ranks, links, routes and the limit of silence
};

class ManyRanks {
 public:
  explicit ManyRanks(const ManyRanksOptions& options);
  ~ManyRanks();

  ManyRanks(const ManyRanks&) = delete;
  ManyRanks& operator=(const ManyRanks&) = delete;

  int size() const { return size_; }
  const std::shared_ptr<Endpoint>& at(int rank) const { return endpoints_[rank]; }
  // Links on the shortest route to the rank that is `offset` further on.
  int hops(int offset) const { return static_cast<int>(ways_[offset].size()); }

  // A group of all ranks, whose one ring is that of the first stride, 1.
  std::vector<std::shared_ptr<Group>> openGroup(uint32_t channel,
                                                const std::string& algorithm = "auto") const;
  // Calls `start` for every member of a group and waits for all of them; their errors.
  static std::vector<std::string> onAll(
      const std::vector<std::shared_ptr<Group>>& members,
      const std::function<void(Group&, int member, Done done)>& start);

 private:
  std::vector<plan::Route> routesThrough(int rank, const std::vector<int>& offsets) const;

  const int size_;
  std::vector<std::vector<int>> ways_;  // of each offset: the strides of its shortest route
  std::vector<std::shared_ptr<Endpoint>> endpoints_;
};

}  // namespace topoopt
