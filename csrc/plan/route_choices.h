// Routes among which the bytes of an unequal all-to-all may be divided. Every rank derives the same
// ones from the network, so a frame names its route by number. The plan's routes may be others.

#pragma once

#include <cstddef>
#include <vector>

#include "plan/gather_plan.h"

namespace topoopt {

class RouteChoices {
 public:
  // A list of servers from source to target.
  using Path = std::vector<int>;

  // `links` has one entry per pair of linked servers.
  RouteChoices(int servers, std::vector<RatedLink> links);

  int servers() const { return servers_; }
  const std::vector<RatedLink>& links() const { return links_; }
  // Ascending in length, without cycles.
  const std::vector<Path>& of(int source, int target) const {
    return paths_[static_cast<size_t>(source) * static_cast<size_t>(servers_) +
                  static_cast<size_t>(target)];
  }
  // Index in links(), -1 if there is none.
  int linkBetween(int source, int target) const;

 private:
  int servers_;
  std::vector<RatedLink> links_;
  std::vector<int> link_of_;                // by source and target
  std::vector<std::vector<Path>> paths_{};  // likewise
};

}  // namespace topoopt
