#include "sim/packet/adaptive_routing.h"

#include <algorithm>
#include <stdexcept>
#include <string>

namespace topoopt::packet {

namespace {

constexpr int kMostChannels = 255;  // a packet has a byte for its channel

int checkedNodes(int nodes) {
  if (nodes < 1) {
    throw std::invalid_argument("nodes: " + std::to_string(nodes) + " is not at least 1");
  }
  return nodes;
}

std::vector<char> marked(const std::vector<int>& links, size_t count, const char* field) {
  std::vector<char> marks(count, 0);
  for (int link : links) {
    if (link < 0 || static_cast<size_t>(link) >= count) {
      throw std::invalid_argument(std::string(field) + ": link " + std::to_string(link) +
                                  " is not in 0.." +
                                  std::to_string(static_cast<int64_t>(count) - 1));
    }
    marks[link] = 1;
  }
  return marks;
}

}  // namespace

AdaptiveRouting::AdaptiveRouting(int nodes, std::vector<LinkEnds> links, const ChannelRule& rule)
    : nodes_(checkedNodes(nodes)),
      channels_(rule.channels),
      links_(std::move(links)),
      raises_(marked(rule.raises, links_.size(), "raises")),
      last_(marked(rule.last, links_.size(), "last")),
      lifts_(marked(rule.lifts, links_.size(), "lifts")),
      out_(nodes),
      second_state_(nodes, -1),
      detours_(rule.detours),
      group_of_(nodes, -1),
      behind_(nodes),
      rows_(nodes + rule.detours.size()),
      hops_(rows_.size()),
      raised_(rows_.size()) {
  if (channels_ < 1 || channels_ > kMostChannels) {
    throw std::invalid_argument("channels: " + std::to_string(channels_) + " is not in 1..255");
  }
  for (int node = 0; node < nodes_; ++node) node_of_.push_back(node);
  for (size_t link = 0; link < links_.size(); ++link) {
    const auto [source, target] = links_[link];
    for (int node : {source, target}) {
      if (node >= 0 && node < nodes_) continue;
      throw std::invalid_argument("links[" + std::to_string(link) + "]: node " +
                                  std::to_string(node) + " is not in 0.." +
                                  std::to_string(nodes_ - 1));
    }
    out_[source].push_back(static_cast<uint32_t>(link));
    if (!last_[link]) {
      state_after_.push_back(static_cast<uint32_t>(target));
      continue;
    }
    if (second_state_[target] < 0) {
      second_state_[target] = static_cast<int>(node_of_.size());
      node_of_.push_back(target);
    }
    state_after_.push_back(static_cast<uint32_t>(second_state_[target]));
  }
  into_.resize(node_of_.size());
  for (size_t link = 0; link < links_.size(); ++link) {
    into_[state_after_[link]].push_back(static_cast<uint32_t>(link));
  }
  addGroups();
}

void AdaptiveRouting::addGroups() {
  if (detours_.empty()) return;
  if (std::ranges::find(raises_, 0) != raises_.end()) {
    throw std::invalid_argument("detours: every link has to raise the channel");
  }
  for (size_t group = 0; group < detours_.size(); ++group) {
    const std::string field = "detours[" + std::to_string(group) + "]: ";
    if (detours_[group].empty()) throw std::invalid_argument(field + "no nodes");
    for (int node : detours_[group]) {
      if (node < 0 || node >= nodes_) {
        throw std::invalid_argument(field + "node " + std::to_string(node) + " is not in 0.." +
                                    std::to_string(nodes_ - 1));
      }
      if (group_of_[node] >= 0) {
        throw std::invalid_argument(field + "node " + std::to_string(node) +
                                    " is named a second time");
      }
      group_of_[node] = static_cast<int>(group);
    }
  }
  for (size_t group = 0; group < detours_.size(); ++group) {
    addRow(nodes_ + static_cast<int>(group), distances(detours_[group]));
  }
}

// Hops per state by reverse breadth-first search from the targets; -1 without a path.
std::vector<int> AdaptiveRouting::distances(std::span<const int> targets) const {
  std::vector<int> distance(node_of_.size(), -1);
  std::vector<uint32_t> queue;
  const auto reach = [&](int state, int hops) {
    if (state < 0 || distance[state] >= 0) return;
    distance[state] = hops;
    queue.push_back(static_cast<uint32_t>(state));
  };
  for (int target : targets) {
    reach(target, 0);
    reach(second_state_[target], 0);
  }
  for (size_t i = 0; i < queue.size(); ++i) {
    const uint32_t state = queue[i];
    for (uint32_t link : into_[state]) {
      const int source = links_[link].source;
      reach(source, distance[state] + 1);
      const int second = second_state_[source];
      if (second >= 0 && allowed(static_cast<uint32_t>(second), link)) {
        reach(second, distance[state] + 1);
      }
    }
  }
  return distance;
}

uint32_t AdaptiveRouting::listOf(const std::vector<uint32_t>& links) {
  if (links.empty()) return kNone;
  uint64_t hash = links.size();
  for (uint32_t link : links) hash = (hash ^ link) * 0x9e3779b97f4a7c15;
  const auto [first, end] = list_of_hash_.equal_range(hash);
  for (auto it = first; it != end; ++it) {
    const uint32_t at = it->second;
    if (lists_[at] == links.size() && std::equal(links.begin(), links.end(), &lists_[at + 1])) {
      return at;
    }
  }
  const auto at = static_cast<uint32_t>(lists_.size());
  lists_.push_back(static_cast<uint32_t>(links.size()));
  lists_.insert(lists_.end(), links.begin(), links.end());
  list_of_hash_.emplace(hash, at);
  return at;
}

void AdaptiveRouting::addRow(int target, const std::vector<int>& distance) {
  std::vector<uint32_t>& row = rows_[target];
  row.assign(node_of_.size(), kNone);
  std::vector<uint32_t> order;
  for (uint32_t state = 0; state < node_of_.size(); ++state) {
    if (distance[state] > 0) order.push_back(state);
  }
  std::ranges::stable_sort(order, {}, [&](uint32_t state) { return distance[state]; });
  std::vector<int> raised(node_of_.size(), 0);
  std::vector<uint32_t> nearer;
  for (uint32_t state : order) {
    nearer.clear();
    for (uint32_t link : out_[node_of_[state]]) {
      const uint32_t next = state_after_[link];
      if (distance[next] != distance[state] - 1 || !allowed(state, link)) continue;
      nearer.push_back(link);
      raised[state] = std::max(raised[state], raised[next] + raises_[link]);
    }
    row[state] = listOf(nearer);
  }
  hops_[target].assign(distance.begin(), distance.begin() + nodes_);
  raised_[target].assign(raised.begin(), raised.begin() + nodes_);
}

void AdaptiveRouting::prepare(int target, std::span<const int> sources) {
  if (rows_[target].empty()) {
    addRow(target, distances(std::span(&target, 1)));
    for (const std::vector<int>& group : detours_) {
      int least = -1;
      for (int node : group) {
        const int hops = hops_[target][node];
        if (hops >= 0 && (least < 0 || hops < least)) least = hops;
      }
      behind_[target].push_back(least);
    }
  }
  for (int source : sources) {
    const std::string ends =
        "from node " + std::to_string(source) + " to node " + std::to_string(target);
    if (hops_[target][source] < 0) throw std::invalid_argument("links: no path " + ends);
    const int needed = channelsNeeded(source, target);
    if (needed > channels_) {
      throw std::invalid_argument("channels: " + std::to_string(channels_) +
                                  " is not enough: packets " + ends + " need " +
                                  std::to_string(needed));
    }
  }
}

int AdaptiveRouting::channelsNeeded(int source, int target) const {
  int most = raised_[target][source];
  for (size_t group = 0; group < detours_.size(); ++group) {
    const int there = static_cast<int>(group);
    if (there == group_of_[source] || there == group_of_[target]) continue;
    int behind = 0;
    for (int node : detours_[group]) behind = std::max(behind, raised_[target][node]);
    most = std::max(most, raised_[nodes_ + there][source] + behind);
  }
  return most + 1;
}

std::vector<int> AdaptiveRouting::path(int source, int target) {
  prepare(target, std::span(&source, 1));
  std::vector<int> links;
  uint32_t state = static_cast<uint32_t>(source);
  while (node_of_[state] != target) {
    const uint32_t link = candidates(state, static_cast<uint32_t>(target)).front();
    links.push_back(static_cast<int>(link));
    state = state_after_[link];
  }
  return links;
}

std::vector<std::pair<uint32_t, uint32_t>> AdaptiveRouting::dependencies(
    std::span<const int> hosts) {
  if (!detours_.empty()) return {};  // channels only increase, so no cycle is possible
  const auto channels = static_cast<uint32_t>(channels_);
  std::vector<uint32_t> place(links_.size());  // index of a link among those from its source
  for (const auto& out : out_) {
    for (uint32_t i = 0; i < out.size(); ++i) place[out[i]] = i;
  }
  std::vector<size_t> begin{0};  // first bit of each channel: one per possible next link
  for (const LinkEnds& link : links_) {
    for (uint32_t c = 0; c < channels; ++c)
      begin.push_back(begin.back() + out_[link.target].size());
  }
  std::vector<bool> known(begin.back(), false);
  std::vector<int> seen_for(links_.size() * channels, -1);
  std::vector<std::pair<uint32_t, uint32_t>> edges;
  std::vector<uint32_t> queue;
  for (int target : hosts) {
    prepare(target, hosts);
    queue.clear();
    const auto reach = [&](uint32_t channel) {
      if (seen_for[channel] == target) return;
      seen_for[channel] = target;
      queue.push_back(channel);
    };
    for (int source : hosts) {
      for (uint32_t link :
           candidates(static_cast<uint32_t>(source), static_cast<uint32_t>(target))) {
        reach(link * channels + raises_[link]);
      }
    }
    for (size_t i = 0; i < queue.size(); ++i) {
      const uint32_t channel = queue[i];
      const uint32_t state = state_after_[channel / channels];
      for (uint32_t link : candidates(state, static_cast<uint32_t>(target))) {
        const uint32_t next = link * channels + channel % channels + raises_[link];
        reach(next);
        const size_t bit = begin[channel] + place[link];
        if (known[bit]) continue;
        known[bit] = true;
        edges.emplace_back(channel, next);
      }
    }
  }
  return edges;
}

}  // namespace topoopt::packet
