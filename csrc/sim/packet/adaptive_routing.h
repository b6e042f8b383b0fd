// Which links a packet may take next, for routing that chooses per packet at every node.

#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

namespace topoopt::packet {

// Every link has `channels` virtual channels with buffers of their own. A packet is made for
// channel 0, goes to the next channel with every link that `raises`, and keeps its channel with
// every other. Behind a link that is `last` it may only take links that are last too, or of
// `lifts`: with the links to the north of a mesh as last ones that is north-last routing (Glass and
// Ni, ISCA 1992).
//
// A packet may also be sent over one of the groups of nodes in `detours` first (Valiant, STOC
// 1981), with links that all raise, so that nothing waits in a cycle.
struct ChannelRule {
  int channels = 1;
  std::vector<int> raises, last, lifts;  // indices of links
  std::vector<std::vector<int>> detours{};
};

struct LinkEnds {
  int source, target;
};

// Minimal adaptive routing: a packet may take every link that brings it nearer to its target by the
// fewest links that the rule allows. The packet level asks this object, and the channel dependency
// graph is made from it, so that what is proven holds for what is simulated.
//
// A packet is in a state: the node where it is, and whether it came over a link that is last.
class AdaptiveRouting {
 public:
  // Throws std::invalid_argument for ends that are not in 0..nodes-1, for links of the rule that
  // do not exist, for fewer than 1 or more than 255 channels, and for detours over nodes that do
  // not exist or are in two groups, or where a link does not raise.
  AdaptiveRouting(int nodes, std::vector<LinkEnds> links, const ChannelRule& rule);

  // Makes the table of a target, if there is none yet. Throws std::invalid_argument where `sources`
  // have no path to it, or need more channels than there are.
  void prepare(int target, std::span<const int> sources);

  // Links from `state` towards a target that was prepared, in ascending order; none where the
  // packet has arrived.
  std::span<const uint32_t> candidates(uint32_t state, uint32_t target) const {
    const uint32_t at = rows_[target][state];
    return {lists_.data() + at + 1, lists_[at]};
  }
  // A packet that is made at a node has the node's number as its state.
  uint32_t stateAfter(uint32_t link) const { return state_after_[link]; }
  bool raises(uint32_t link) const { return raises_[link]; }

  // Detours: their groups, and that of a node (-1: none). towards() is the target by which
  // candidates() leads to a group, and behind() the fewest links from there to a target that was
  // prepared.
  int groups() const { return static_cast<int>(detours_.size()); }
  int groupOf(int node) const { return group_of_[node]; }
  uint32_t towards(int group) const { return static_cast<uint32_t>(nodes_ + group); }
  int behind(int group, uint32_t target) const { return behind_[target][group]; }

  int channels() const { return channels_; }
  int nodes() const { return nodes_; }
  const std::vector<LinkEnds>& links() const { return links_; }
  // The fewest links to a target that was prepared, or one of towards(), from each node, made
  // there; -1: no path.
  const std::vector<int>& hops(int target) const { return hops_[target]; }

  // The first of the paths between two nodes.
  std::vector<int> path(int source, int target);

  // The channel dependency graph of packets between `hosts`: pairs (a, b), channels of a link being
  // numbered link * channels() + channel, such that some packet that holds a may wait for b. None
  // are listed with detours, where b is always of the channel after a's.
  std::vector<std::pair<uint32_t, uint32_t>> dependencies(std::span<const int> hosts);

 private:
  static constexpr uint32_t kNone = 0;  // the empty list

  bool allowed(uint32_t state, uint32_t link) const {
    return state < static_cast<uint32_t>(nodes_) || last_[link] || lifts_[link];
  }
  void addGroups();
  int channelsNeeded(int source, int target) const;
  std::vector<int> distances(std::span<const int> targets) const;
  void addRow(int target, const std::vector<int>& distance);
  uint32_t listOf(const std::vector<uint32_t>& links);

  int nodes_, channels_;
  std::vector<LinkEnds> links_;
  std::vector<char> raises_, last_, lifts_;
  std::vector<std::vector<uint32_t>> out_;  // links per node
  std::vector<uint32_t> state_after_;
  std::vector<int> node_of_;                 // per state
  std::vector<int> second_state_;            // per node: behind a link that is last; -1: none
  std::vector<std::vector<uint32_t>> into_;  // per state: links that lead to it
  std::vector<std::vector<int>> detours_;    // nodes per group
  std::vector<int> group_of_;                // per node
  std::vector<std::vector<int>> behind_;     // per target and group
  // targets are nodes, and then groups
  std::vector<std::vector<uint32_t>> rows_;  // per target and state: a place in lists_
  std::vector<std::vector<int>> hops_;       // per target and node
  std::vector<std::vector<int>> raised_;     // per target and node: the most raises on the way
  std::vector<uint32_t> lists_{0};           // a length, then as many links
  std::unordered_multimap<uint64_t, uint32_t> list_of_hash_;
};

}  // namespace topoopt::packet
