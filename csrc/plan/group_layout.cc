#include "plan/group_layout.h"

#include <algorithm>
#include <map>
#include <stdexcept>
#include <string>

namespace topoopt {

GroupLayout::GroupLayout(int size, std::vector<plan::Ring> rings, std::vector<int> servers,
                         std::vector<int> hops)
    : size_(size), rings_(std::move(rings)), hops_(std::move(hops)) {
  const auto members = static_cast<size_t>(size);
  if (!servers.empty() && servers.size() != members) {
    throw std::invalid_argument("servers: " + std::to_string(servers.size()) + " entries for " +
                                std::to_string(size) + " members");
  }
  if (!hops_.empty() && hops_.size() != members * members) {
    throw std::invalid_argument("hops: " + std::to_string(hops_.size()) + " entries for " +
                                std::to_string(size) + " members, not one per pair");
  }
  leader_of_.resize(members);
  others_of_.resize(members);
  std::map<int, int> first;
  for (int member = 0; member < size; ++member) {
    const auto [entry, added] =
        first.try_emplace(servers.empty() ? member : servers[member], member);
    leader_of_[member] = entry->second;
    if (added) {
      leaders_.push_back(member);
    } else {
      others_of_[entry->second].push_back(member);
    }
  }
  for (const auto& others : others_of_) most_others_ = std::max(most_others_, others.size());
  if (rings_.empty() && leaders_.size() == 1) rings_.push_back({leaders_, 1.0});
  checkRings();
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

int GroupLayout::hops(int source, int target) const {
  if (leader_of_[source] == leader_of_[target]) return 0;
  if (hops_.empty()) return 1;
  return hops_[static_cast<size_t>(source) * static_cast<size_t>(size_) +
               static_cast<size_t>(target)];
}

}  // namespace topoopt
