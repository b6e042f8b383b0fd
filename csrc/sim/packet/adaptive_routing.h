// The possible next links of a packet, for routing that selects per packet and node.

#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

namespace topoopt::packet {

// Every link has `channels` virtual channels with separate buffers. A packet starts on channel 0,
// moves to the next channel on every link in `raises`, and otherwise keeps it. After a link in
// `last`, only links in `last` or `lifts` are allowed. With a mesh's northward links as `last`,
// that is north-last routing (Glass and Ni, ISCA 1992).
//
// A packet may first be sent to a group of nodes in `detours` (Valiant, STOC 1981). All links then
// raise, so that no wait cycle exists.
struct ChannelRule {
  int channels = 1;
  std::vector<int> raises, last, lifts;  // link indices
  std::vector<std::vector<int>> detours{};
};

struct LinkEnds {
  int source, target;
};

// Minimal adaptive routing: a packet may use every link on a shortest path that the rule allows.
// Both the packet level and the channel dependency graph use this object, so proofs apply to the
// simulation.
//
// A packet's state is its node, and whether its last link was in `last`.
class AdaptiveRouting {
 public:
  // Throws std::invalid_argument for ends outside 0..nodes-1, unknown links in the rule, or a
  // number of channels outside 1..255. Also for detours with unknown or repeated nodes, or with a
  // link that does not raise.
  AdaptiveRouting(int nodes, std::vector<LinkEnds> links, const ChannelRule& rule);

  // Computes the table of a target once. Throws std::invalid_argument if `sources` have no path to
  // it, or need too many channels.
  void prepare(int target, std::span<const int> sources);

  // Links from `state` towards a prepared target, ascending; empty at the target.
  std::span<const uint32_t> candidates(uint32_t state, uint32_t target) const {
    const uint32_t at = rows_[target][state];
    return {lists_.data() + at + 1, lists_[at]};
  }
  // The initial state of a packet is its node.
  uint32_t stateAfter(uint32_t link) const { return state_after_[link]; }
  bool raises(uint32_t link) const { return raises_[link]; }

  // Detours: number of groups, and the group of a node (-1: none). towards() is the target id of a
  // group for candidates(), and behind() the minimum hops from the group to a prepared target.
  int groups() const { return static_cast<int>(detours_.size()); }
  int groupOf(int node) const { return group_of_[node]; }
  uint32_t towards(int group) const { return static_cast<uint32_t>(nodes_ + group); }
  int behind(int group, uint32_t target) const { return behind_[target][group]; }

  int channels() const { return channels_; }
  int nodes() const { return nodes_; }
  const std::vector<LinkEnds>& links() const { return links_; }
  // Minimum hops from each node, without earlier links, to a prepared target or one of towards();
  // -1: no path.
  const std::vector<int>& hops(int target) const { return hops_[target]; }

  // A shortest path between two nodes.
  std::vector<int> path(int source, int target);

  // The channel dependency graph of packets between `hosts`: pairs (a, b) of channels (link *
  // channels() + channel), if a packet that holds a may wait for b. Empty with detours, where b is
  // always on the next channel.
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
  std::vector<int> second_state_;            // per node: after a `last` link; -1: none
  std::vector<std::vector<uint32_t>> into_;  // per state: links that lead to it
  std::vector<std::vector<int>> detours_;    // nodes per group
  std::vector<int> group_of_;                // per node
  std::vector<std::vector<int>> behind_;     // per target and group
  // Targets are nodes, then groups.
  std::vector<std::vector<uint32_t>> rows_;  // per target and state: offset in lists_
  std::vector<std::vector<int>> hops_;       // per target and node
  std::vector<std::vector<int>> raised_;     // per target and node: maximum raises on the way
  std::vector<uint32_t> lists_{0};           // a length, then the links
  std::unordered_multimap<uint64_t, uint32_t> list_of_hash_;
};

}  // namespace topoopt::packet
