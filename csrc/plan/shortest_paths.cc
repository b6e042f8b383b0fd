#include "plan/shortest_paths.h"

#include <algorithm>
#include <stdexcept>
#include <string>

namespace topoopt {

ShortestPaths::ShortestPaths(int servers, const std::vector<RatedLink>& links)
    : next(servers, std::vector<int>(servers, -1)),
      hops(static_cast<size_t>(servers) * servers, kUnreached) {
  std::vector<std::vector<int>> into(static_cast<size_t>(servers));
  for (const RatedLink& link : links) into[link.target].push_back(link.source);
  for (int target = 0; target < servers; ++target) {
    std::vector<int> found{target};
    hops[at(target, target)] = 0;
    for (size_t i = 0; i < found.size(); ++i) {
      for (const int server : into[found[i]]) {
        if (hops[at(server, target)] != kUnreached) continue;
        hops[at(server, target)] = static_cast<uint16_t>(hops[at(found[i], target)] + 1);
        next[server][target] = found[i];
        found.push_back(server);
      }
    }
  }
}

bool ShortestPaths::joined() const { return std::ranges::find(hops, kUnreached) == hops.end(); }

void ShortestPaths::checkJoined() const {
  const auto missing = std::ranges::find(hops, kUnreached);
  if (missing == hops.end()) return;
  const size_t pair = static_cast<size_t>(missing - hops.begin());
  throw std::invalid_argument("links: no path from server " + std::to_string(pair / next.size()) +
                              " to server " + std::to_string(pair % next.size()));
}

}  // namespace topoopt
