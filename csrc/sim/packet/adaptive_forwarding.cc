// Adaptive forwarding: at every node, packets select the link with the shortest queue.

#include <algorithm>
#include <array>
#include <span>
#include <stdexcept>
#include <string>

#include "sim/packet/packet_network.h"

namespace topoopt::packet {

void PacketNetwork::prepareRouting(const FlowProgram& program) {
  if (options_.path_choice == PathChoice::kPlanned) {
    if (routing_) throw std::invalid_argument("routing: needs path_choice adaptive");
    return;
  }
  std::vector<LinkEnds> ends;
  for (const ProgramLink& link : links_) ends.push_back({link.source, link.target});
  if (!routing_) routing_ = std::make_shared<AdaptiveRouting>(program.nodes(), ends, ChannelRule{});
  const auto same = [](const LinkEnds& a, const LinkEnds& b) {
    return a.source == b.source && a.target == b.target;
  };
  if (routing_->nodes() != program.nodes() || !std::ranges::equal(routing_->links(), ends, same)) {
    throw std::invalid_argument(
        "routing: is not of this network: nodes and links have to be those "
        "of the program, in its order");
  }
  channel_count_ = static_cast<uint32_t>(routing_->channels());
  for (size_t route = 0; route < planned_routes_.size(); ++route) {
    const int source = sourceOf(static_cast<int>(route));
    routing_->prepare(targetOf(static_cast<int>(route)), std::span(&source, 1));
  }
}

void PacketNetwork::failIfAdaptive(const char* field) const {
  if (!adaptive()) return;
  throw std::invalid_argument(std::string(field) +
                              ": cannot change where path_choice is adaptive: packets choose their "
                              "links themselves");
}

int64_t PacketNetwork::waitingAt(uint32_t link) const {
  return ports_[link].queued_bytes + (ports_[link].busy ? 1 : 0);
}

// Selects a shortest queue, ties at random.
uint32_t PacketNetwork::shortest(std::span<const uint32_t> links) {
  uint32_t best = links.front();
  if (links.size() < 2) return best;
  size_t at = static_cast<size_t>(chance() * static_cast<double>(links.size()));
  int64_t least = kUnlimited;
  for (size_t i = 0; i < links.size(); ++i) {
    const int64_t waiting = waitingAt(links[at]);
    if (waiting < least) {
      least = waiting;
      best = links[at];
    }
    at = at + 1 == links.size() ? 0 : at + 1;
  }
  return best;
}

// UGAL-L (Kim et al., ISCA 2008, section 4.2): the first node after a host compares the
// shortest path with a detour over a random group, by queue length times remaining links. It knows
// only its own queues.
void PacketNetwork::chooseDetour(Packet& packet) {
  const auto [source, node] = routing_->links()[packet.link];
  const auto target = static_cast<int>(packet.hop);
  if (source != sourceOf(static_cast<int>(flows_[packet.flow].route))) return;
  std::array<int, 2> ends = {routing_->groupOf(node), routing_->groupOf(target)};
  std::ranges::sort(ends);
  const int others = routing_->groups() - 2;
  if (ends[0] < 0 || ends[0] == ends[1] || others < 1) return;
  auto group = static_cast<int>(chance() * others);
  for (const int end : ends) group += group >= end ? 1 : 0;
  const uint32_t towards = routing_->towards(group);
  const auto over = routing_->candidates(static_cast<uint32_t>(node), towards);
  const auto direct = routing_->candidates(static_cast<uint32_t>(node), packet.hop);
  if (over.empty() || direct.empty() || routing_->behind(group, packet.hop) < 0) return;
  const int64_t hops = routing_->hops(target)[node];
  const int64_t more =
      routing_->hops(static_cast<int>(towards))[node] + routing_->behind(group, packet.hop);
  if (waitingAt(shortest(over)) * more < waitingAt(shortest(direct)) * hops) {
    packet.detour = group;
  }
}

uint32_t PacketNetwork::steer(Packet& packet) {
  uint32_t target = packet.hop;
  if (routing_->groups() > 0) {
    if (packet.detour < 0) {
      chooseDetour(packet);
    } else if (packet.detour == routing_->groupOf(routing_->links()[packet.link].target)) {
      packet.detour = -1;
    }
    if (packet.detour >= 0) target = routing_->towards(packet.detour);
  }
  const auto links = routing_->candidates(routing_->stateAfter(packet.link), target);
  if (links.empty()) return kNoLink;
  const uint32_t best = shortest(links);
  packet.next_channel = static_cast<uint8_t>(packet.channel + routing_->raises(best));
  return best;
}

void PacketNetwork::wakeAdaptive(uint32_t slot) {
  Flow& flow = flows_[slot];
  Picoseconds from = now_;
  if (flow.done || flow.listed || !transport_->ready(slot, from)) return;
  flow.listed = true;
  const int host = sourceOf(static_cast<int>(flow.route));
  const auto most = static_cast<uint32_t>(options_.sends_at_once);
  if (most > 0 && sending_flows_[host].size() >= most) {
    waiting_flows_[host].push(slot);
    return;
  }
  sending_flows_[host].push(slot);
  offer(slot);
}

// Offers packets to all possible ports; idle ones take one.
void PacketNetwork::offer(uint32_t slot) {
  const Flow& flow = flows_[slot];
  const auto host = static_cast<uint32_t>(sourceOf(static_cast<int>(flow.route)));
  for (uint32_t link : routing_->candidates(host, flow.target)) {
    Channel& channel = channelOf(link, routing_->raises(link));
    if (!channel.own_flows) {
      channel.own_flows = true;
      channel.turns.push(kOwnFlows);
    }
    if (!ports_[link].busy) serve(link, false);
  }
}

void PacketNetwork::offerNext() {
  while (!next_senders_.empty()) {
    const uint32_t slot = next_senders_.back();
    next_senders_.pop_back();
    offer(slot);
  }
}

// Returns the next packet of a flow at the port's node that may use it. A finished flow makes room
// for a waiting one; retransmissions queue again.
bool PacketNetwork::takeOwn(uint32_t number) {
  const auto host = static_cast<uint32_t>(links_[number].source);
  RingBuffer<uint32_t>& flows = sending_flows_[host];
  for (uint32_t i = flows.size(); i > 0; --i) {
    const uint32_t slot = flows.front();
    const auto links = routing_->candidates(host, flows_[slot].target);
    flows.pop();
    if (std::ranges::find(links, number) == links.end()) {
      flows.push(slot);
      continue;
    }
    fill(slot, ports_[number].in_service);
    ports_[number].in_service.next_channel = routing_->raises(number);
    Picoseconds from = now_;
    if (transport_->ready(slot, from)) {
      flows.push(slot);
      return true;
    }
    flows_[slot].listed = false;
    if (!waiting_flows_[host].empty()) {
      flows.push(waiting_flows_[host].front());
      next_senders_.push_back(waiting_flows_[host].pop());
    }
    return true;
  }
  return false;
}

}  // namespace topoopt::packet
