#include "plan/group_layout.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <stdexcept>
#include <string>
#include <utility>

namespace topoopt {

bool joinsAll(int places, const LinkSet& links) {
  checkLinks(places, links);
  const auto size = static_cast<size_t>(places);
  std::vector<bool> reached(2 * size, places < 2);  // from place 0, and place 0 from it
  std::vector<std::vector<int>> next(reached.size());
  for (const RatedLink& link : links) {
    next[link.source].push_back(link.target);
    next[places + link.target].push_back(places + link.source);
  }
  for (const int start : {0, places}) {
    std::vector<int> found{start};
    for (size_t i = 0; places > 1 && i < found.size(); ++i) {
      reached[found[i]] = true;
      for (const int place : next[found[i]]) {
        if (!reached[place]) found.push_back(place);
        reached[place] = true;
      }
    }
  }
  return std::find(reached.begin(), reached.end(), false) == reached.end();
}

GroupLayout::GroupLayout(int size, std::vector<plan::Ring> rings, std::vector<int> servers,
                         std::shared_ptr<const HopTable> hops, plan::Grid grid)
    : size_(size),
      rings_(std::move(rings)),
      grid_(std::move(grid)),
      servers_(std::move(servers)),
      hops_(std::move(hops)) {
  const auto members = static_cast<size_t>(size);
  if (servers_.empty()) {
    servers_.resize(members);
    std::iota(servers_.begin(), servers_.end(), 0);
  }
  checkServers();
  leader_of_.resize(members);
  others_of_.resize(members);
  std::map<int, int> first;
  for (int member = 0; member < size; ++member) {
    const auto [entry, added] = first.try_emplace(servers_[member], member);
    leader_of_[member] = entry->second;
    if (added) {
      leaders_.push_back(member);
    } else {
      others_of_[entry->second].push_back(member);
    }
  }
  for (int member = 0; member < size; ++member) {
    const auto place = std::lower_bound(leaders_.begin(), leaders_.end(), leader_of_[member]);
    place_of_.push_back(static_cast<int>(place - leaders_.begin()));
  }
  for (const auto& others : others_of_) most_others_ = std::max(most_others_, others.size());
  if (rings_.empty() && leaders_.size() == 1) rings_.push_back({leaders_, 1.0});
  checkRings();
  checkGrid();
  planned_ = rings_;
}

GroupLayout GroupLayout::over(CollectivePaths paths) const {
  GroupLayout layout = *this;
  layout.rings_ = std::move(paths.rings);
  layout.setLinkSets(std::move(paths.link_sets));
  layout.grid_.clear();
  layout.route_loads_ = {};
  layout.checkRings();
  return layout;
}

const LinkSet& GroupLayout::links() const {
  static const LinkSet none;
  return link_sets_.empty() ? none : link_sets_.front();
}

void GroupLayout::setLinkSets(std::vector<LinkSet> sets) {
  const int places = static_cast<int>(leaders_.size());
  std::erase_if(sets, [&](const LinkSet& set) { return !joinsAll(places, set) || places < 2; });
  link_sets_ = std::move(sets);
}

void GroupLayout::checkServers() const {
  if (servers_.size() != static_cast<size_t>(size_)) {
    throw std::invalid_argument("servers: " + std::to_string(servers_.size()) + " entries for " +
                                std::to_string(size_) + " members");
  }
  if (!hops_) return;
  for (const int server : servers_) {
    if (server >= 0 && server < hops_->servers()) continue;
    throw std::invalid_argument("servers: " + std::to_string(server) + " is not in 0.." +
                                std::to_string(hops_->servers() - 1) + ", as hops has them");
  }
}

void GroupLayout::checkRings() const {
  if (rings_.empty()) throw std::invalid_argument("rings: a group on several servers needs one");
  for (size_t r = 0; r < rings_.size(); ++r) {
    std::vector<int> order = rings_[r].servers;
    std::sort(order.begin(), order.end());
    if (order == leaders_) continue;
    throw std::invalid_argument("rings[" + std::to_string(r) +
                                "]: must list the first member of each server once");
  }
}

void GroupLayout::checkGrid() const {
  if (grid_.empty()) return;
  std::vector<int> order;
  for (const std::vector<int>& row : grid_) {
    if (row.size() != grid_.front().size()) {
      throw std::invalid_argument("grid: rows of " + std::to_string(grid_.front().size()) +
                                  " and of " + std::to_string(row.size()) +
                                  " members; all must be equally long");
    }
    order.insert(order.end(), row.begin(), row.end());
  }
  if (grid_.size() < 2 || grid_.front().size() < 2) {
    throw std::invalid_argument("grid: " + std::to_string(grid_.size()) + " x " +
                                std::to_string(grid_.front().size()) + " is not at least 2 x 2");
  }
  std::sort(order.begin(), order.end());
  if (order != leaders_) {
    throw std::invalid_argument("grid: must list the first member of each server once");
  }
}

}  // namespace topoopt
