// Packets that choose their links themselves, at every node the one with the shortest queue.

#include <algorithm>
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

// Of equally short queues the one that the seed draws.
uint32_t PacketNetwork::steer(Packet& packet) {
  const auto links = routing_->candidates(routing_->stateAfter(packet.link), packet.hop);
  if (links.empty()) return kNoLink;
  uint32_t best = links.front();
  if (links.size() > 1) {
    size_t at = static_cast<size_t>(chance() * static_cast<double>(links.size()));
    int64_t least = kUnlimited;
    for (size_t i = 0; i < links.size(); ++i) {
      const Port& port = ports_[links[at]];
      const int64_t waiting = port.queued_bytes + (port.busy ? 1 : 0);
      if (waiting < least) {
        least = waiting;
        best = links[at];
      }
      at = at + 1 == links.size() ? 0 : at + 1;
    }
  }
  packet.next_channel = static_cast<uint8_t>(packet.channel + routing_->raises(best));
  return best;
}

// Offers the flow to every port over which it may leave; that which is free takes a packet.
void PacketNetwork::wakeAdaptive(uint32_t slot) {
  Flow& flow = flows_[slot];
  if (flow.done) return;
  const int host = sourceOf(static_cast<int>(flow.route));
  if (!flow.listed) {
    Picoseconds from = now_;
    if (!transport_->ready(slot, from)) return;
    flow.listed = true;
    sending_flows_[host].push(slot);
  }
  for (uint32_t link : routing_->candidates(static_cast<uint32_t>(host), flow.target)) {
    Channel& channel = channelOf(link, routing_->raises(link));
    if (!channel.own_flows) {
      channel.own_flows = true;
      channel.turns.push(kOwnFlows);
    }
    if (!ports_[link].busy) serve(link, false);
  }
}

// A packet of the next flow of the port's node that may leave over it.
bool PacketNetwork::takeOwn(uint32_t number) {
  const auto host = static_cast<uint32_t>(links_[number].source);
  RingBuffer<uint32_t>& flows = sending_flows_[host];
  for (uint32_t i = flows.size(); i > 0; --i) {
    const uint32_t slot = flows.pop();
    Flow& flow = flows_[slot];
    Picoseconds from = now_;
    if (flow.done || !transport_->ready(slot, from)) {
      flow.listed = false;
      freeIfOver(slot);
      continue;
    }
    flows.push(slot);
    const auto links = routing_->candidates(host, flow.target);
    if (std::ranges::find(links, number) == links.end()) continue;
    Packet& packet = ports_[number].in_service;
    fill(slot, packet);
    packet.next_channel = routing_->raises(number);
    return true;
  }
  return false;
}

}  // namespace topoopt::packet
