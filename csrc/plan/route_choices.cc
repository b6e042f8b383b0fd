#include "plan/route_choices.h"

#include <algorithm>
#include <utility>

namespace topoopt {
namespace {

// On circulants, the busiest link has at most 1 % more bytes than with all paths
// (tests/topology/test_balanced_shares.py).
constexpr size_t kEnoughPaths = 12;  // of a pair: longer ones are not searched
constexpr size_t kMostPaths = 16;
// Also bounds the time of the search.
constexpr int kMostDetour = 4;  // links more than the shortest path

class PathSearch {
 public:
  PathSearch(int servers, const std::vector<RatedLink>& links)
      : targets_(static_cast<size_t>(servers)), sources_(targets_), left_(targets_.size()) {
    for (const RatedLink& link : links) {
      targets_[link.source].push_back(link.target);
      sources_[link.target].push_back(link.source);
    }
    for (auto& list : targets_) std::sort(list.begin(), list.end());
  }

  // Sets the target of the following searches.
  void aimAt(int target) {
    std::fill(left_.begin(), left_.end(), -1);
    std::vector<int> reached{target};
    left_[target] = 0;
    for (size_t i = 0; i < reached.size(); ++i) {
      for (const int source : sources_[reached[i]]) {
        if (left_[source] >= 0) continue;
        left_[source] = left_[reached[i]] + 1;
        reached.push_back(source);
      }
    }
  }

  std::vector<RouteChoices::Path> from(int source) {
    std::vector<RouteChoices::Path> found;
    const int shortest = left_[source];
    if (shortest < 0) return found;
    for (int links = shortest; links <= shortest + kMostDetour; ++links) {
      path_ = {source};
      extend(links, found);
      if (found.size() >= kEnoughPaths) break;
    }
    return found;
  }

 private:
  // Adds all paths of exactly `links` more links.
  void extend(int links, std::vector<RouteChoices::Path>& found) {
    const int here = path_.back();
    if (left_[here] == 0) {
      if (links == 0 && found.size() < kMostPaths) found.push_back(path_);
      return;
    }
    for (const int next : targets_[here]) {
      if (left_[next] < 0 || left_[next] > links - 1 || found.size() == kMostPaths) continue;
      if (std::find(path_.begin(), path_.end(), next) != path_.end()) continue;
      path_.push_back(next);
      extend(links - 1, found);
      path_.pop_back();
    }
  }

  std::vector<std::vector<int>> targets_;
  std::vector<std::vector<int>> sources_;
  std::vector<int> left_;  // links to the target; -1: no path
  RouteChoices::Path path_;
};

}  // namespace

RouteChoices::RouteChoices(int servers, std::vector<RatedLink> links)
    : servers_(servers), links_(std::move(links)) {
  const auto side = static_cast<size_t>(servers);
  link_of_.assign(side * side, -1);
  for (size_t i = 0; i < links_.size(); ++i) {
    link_of_[links_[i].source * side + links_[i].target] = static_cast<int>(i);
  }
  PathSearch search(servers, links_);
  paths_.resize(side * side);
  for (size_t target = 0; target < side; ++target) {
    search.aimAt(static_cast<int>(target));
    for (size_t source = 0; source < side; ++source) {
      if (source != target) paths_[source * side + target] = search.from(static_cast<int>(source));
    }
  }
}

int RouteChoices::linkBetween(int source, int target) const {
  return link_of_[static_cast<size_t>(source) * static_cast<size_t>(servers_) +
                  static_cast<size_t>(target)];
}

}  // namespace topoopt
