#include "plan/hop_table.h"

#include <algorithm>
#include <stdexcept>
#include <string>
#include <utility>

namespace topoopt {
namespace {

constexpr int kMostServers = 8192;  // of a plan (torch_topoopt/plan/limits.py)

size_t pairsOf(int servers) {
  if (servers < 1 || servers > kMostServers) {
    throw std::invalid_argument("servers: " + std::to_string(servers) + " is not in 1.." +
                                std::to_string(kMostServers));
  }
  return static_cast<size_t>(servers) * static_cast<size_t>(servers);
}

}  // namespace

HopTable::HopTable(int servers, std::vector<uint16_t> hops)
    : servers_(servers), hops_(std::move(hops)) {
  if (hops_.size() != pairsOf(servers)) {
    throw std::invalid_argument("hops: " + std::to_string(hops_.size()) + " entries for " +
                                std::to_string(servers) + " servers, not one per pair");
  }
}

void HopTable::check(const char* field, int server) const {
  if (server >= 0 && server < servers_) return;
  throw std::invalid_argument(std::string(field) + ": server " + std::to_string(server) +
                              " is not in 0.." + std::to_string(servers_ - 1));
}

HopTable HopTable::ofRoutes(int servers, const std::vector<plan::LinkPorts>& links,
                            const std::vector<plan::StrideRoute>& by_offset,
                            const std::vector<std::vector<int>>& next_hops,
                            const std::vector<plan::Route>& listed) {
  HopTable table(servers, std::vector<uint16_t>(pairsOf(servers), 0));
  for (const plan::LinkPorts& link : links) {
    table.check("links", link.source);
    table.check("links", link.target);
    table.hops_[table.index(link.source, link.target)] = 1;
  }
  table.addWalks(next_hops);
  table.addStrides(by_offset);
  table.addListed(listed);
  return table;
}

// A walk is one link longer than that from its second server, so each pair is visited once.
void HopTable::addWalks(const std::vector<std::vector<int>>& next_hops) {
  if (next_hops.empty()) return;
  const auto side = static_cast<size_t>(servers_);
  if (next_hops.size() != side ||
      std::any_of(next_hops.begin(), next_hops.end(),
                  [&](const std::vector<int>& row) { return row.size() != side; })) {
    throw std::invalid_argument("next_hops: not " + std::to_string(servers_) + " rows of as many");
  }
  for (const auto& row : next_hops) {
    for (const int next : row) check("next_hops", next);
  }
  std::vector<int> walk;
  std::vector<uint16_t> left(side);  // links to the target; 0: unknown
  for (int target = 0; target < servers_; ++target) {
    std::fill(left.begin(), left.end(), 0);
    for (int source = 0; source < servers_; ++source) {
      if (source == target) continue;
      int at = source;
      walk.clear();
      while (at != target && left[at] == 0) {
        walk.push_back(at);
        at = next_hops[at][target];
        if (walk.size() > side) {
          throw std::invalid_argument("next_hops: no way from server " + std::to_string(source) +
                                      " to server " + std::to_string(target));
        }
      }
      auto links = static_cast<uint16_t>(at == target ? 0 : left[at]);
      for (; !walk.empty(); walk.pop_back()) left[walk.back()] = ++links;
      if (next_hops[source][target] != target) hops_[index(source, target)] = left[source];
    }
  }
}

void HopTable::addStrides(const std::vector<plan::StrideRoute>& by_offset) {
  std::vector<size_t> least(static_cast<size_t>(servers_), 0);  // per offset; 0: no rule
  for (const plan::StrideRoute& route : by_offset) {
    int64_t sum = 0;
    for (const int stride : route.strides) sum += stride;
    size_t& links = least[static_cast<size_t>((sum % servers_ + servers_) % servers_)];
    links = links == 0 ? route.strides.size() : std::min(links, route.strides.size());
  }
  for (int offset = 1; offset < servers_; ++offset) {
    if (least[offset] == 0) continue;
    for (int source = 0; source < servers_; ++source) {
      hops_[index(source, (source + offset) % servers_)] = static_cast<uint16_t>(least[offset]);
    }
  }
}

void HopTable::addListed(const std::vector<plan::Route>& listed) {
  for (const plan::Route& route : listed) {
    if (route.servers.size() < 2) throw std::invalid_argument("listed: a route of one server");
    for (const int server : route.servers) check("listed", server);
    hops_[index(route.servers.front(), route.servers.back())] = UINT16_MAX;
  }
  for (const plan::Route& route : listed) {
    uint16_t& hops = hops_[index(route.servers.front(), route.servers.back())];
    hops = std::min(hops, static_cast<uint16_t>(route.servers.size() - 1));
  }
}

}  // namespace topoopt
