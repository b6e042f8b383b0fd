// Shortest paths between all servers over directed links.

#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "plan/gather_plan.h"

namespace topoopt {

struct ShortestPaths {
  // Of a pair without a path.
  static constexpr uint16_t kUnreached = UINT16_MAX;

  ShortestPaths(int servers, const std::vector<RatedLink>& links);

  // Whether every server reaches every other.
  bool joined() const;
  // Throws std::invalid_argument unless joined.
  void checkJoined() const;

  size_t at(int source, int target) const {
    return static_cast<size_t>(source) * next.size() + static_cast<size_t>(target);
  }

  std::vector<std::vector<int>> next;  // server on the path, by source and target; or -1
  std::vector<uint16_t> hops;          // length of the path, by at()
};

}  // namespace topoopt
