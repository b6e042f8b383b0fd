#include "sim/iteration/group_rings.h"

#include <algorithm>
#include <utility>

namespace topoopt {

namespace {

// Rotates the ring to start at the smallest server, so that equal rings compare equal.
std::vector<int> canonical(std::vector<int> ring) {
  std::rotate(ring.begin(), std::min_element(ring.begin(), ring.end()), ring.end());
  return ring;
}

std::vector<plan::Ring> restricted(const plan::AllReduceGroup& group,
                                   const std::vector<int>& members) {
  std::vector<plan::Ring> rings;
  for (const plan::Ring& ring : group.rings) {
    std::vector<int> order;
    for (int server : ring.servers) {
      if (std::binary_search(members.begin(), members.end(), server)) order.push_back(server);
    }
    order = canonical(std::move(order));
    const auto same = std::find_if(rings.begin(), rings.end(),
                                   [&](const plan::Ring& other) { return other.servers == order; });
    if (same == rings.end()) {
      rings.push_back({std::move(order), ring.share});
    } else {
      same->share += ring.share;
    }
  }
  return rings;
}

std::vector<int> shortCycle(const std::vector<int>& servers,
                            const std::function<int(int, int)>& hops) {
  std::vector<int> order{servers.front()};
  std::vector<int> left(servers.begin() + 1, servers.end());
  while (!left.empty()) {
    auto nearest = left.begin();
    for (auto it = left.begin() + 1; it != left.end(); ++it) {
      if (hops(order.back(), *it) < hops(order.back(), *nearest)) nearest = it;
    }
    order.push_back(*nearest);
    left.erase(nearest);
  }
  return order;
}

}  // namespace

std::vector<plan::Ring> ringsOfGroup(const std::vector<plan::AllReduceGroup>& groups,
                                     const std::vector<int>& servers, bool both_ways,
                                     const std::function<int(int, int)>& hops) {
  const plan::AllReduceGroup* nearest = nullptr;
  for (const plan::AllReduceGroup& group : groups) {
    if (group.rings.empty()) continue;
    if (group.servers == servers) return group.rings;
    if (std::includes(group.servers.begin(), group.servers.end(), servers.begin(), servers.end()) &&
        (nearest == nullptr || group.servers.size() < nearest->servers.size())) {
      nearest = &group;
    }
  }
  if (servers.size() <= 1) return {{servers, 1.0}};
  if (nearest != nullptr) return restricted(*nearest, servers);
  const std::vector<int> order = shortCycle(servers, hops);
  if (!both_ways || servers.size() == 2) return {{order, 1.0}};
  return {{order, 0.5}, {canonical({order.rbegin(), order.rend()}), 0.5}};
}

std::vector<plan::Ring> bothWays(const std::vector<plan::Ring>& rings) {
  std::vector<plan::Ring> forward, both;
  for (const plan::Ring& ring : rings) forward.push_back({canonical(ring.servers), ring.share / 2});
  for (const plan::Ring& ring : forward) {
    const plan::Ring back{canonical({ring.servers.rbegin(), ring.servers.rend()}), ring.share};
    for (const plan::Ring& other : forward) {
      if (other.servers == back.servers) return {};
    }
    both.insert(both.end(), {ring, back});
  }
  return both;
}

plan::Grid gridOfGroup(const std::vector<plan::AllReduceGroup>& groups,
                       const std::vector<int>& servers) {
  for (const plan::AllReduceGroup& group : groups) {
    if (group.servers == servers && !group.grid.empty()) return group.grid;
  }
  return {};
}

}  // namespace topoopt
