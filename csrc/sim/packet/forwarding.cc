// The path of a packet: into a port's queue, over the link, to the next node or the end.

#include <algorithm>

#include "sim/packet/packet_network.h"

namespace topoopt::packet {

void PacketNetwork::arrive(Packet packet) {
  if (packet.kind >= PacketKind::kPause) {
    takePause(packet.link, packet.channel, packet.kind == PacketKind::kPause);
    return;
  }
  if (packet.link == kNoLink) {
    arriveAtEnd(packet);
    return;
  }
  const Port& from = ports_[packet.link];
  if (from.down_at >= now_ - from.latency) {  // it was in the fibre when the link failed
    drop(packet);
    return;
  }
  if (adaptive() && packet.kind == PacketKind::kData) {
    const uint32_t next = steer(packet);
    if (next == kNoLink) {
      arriveAtEnd(packet);
    } else {
      enqueue(next, packet);
    }
    return;
  }
  const uint32_t next = hops_[packet.hop];
  if (next == kNoLink) {
    arriveAtEnd(packet);
  } else {
    ++packet.hop;
    enqueue(next, packet);
  }
}

void PacketNetwork::arriveAtEnd(const Packet& packet) {
  switch (packet.kind) {
    case PacketKind::kData:
    case PacketKind::kTrimmed:
    case PacketKind::kOpen:
      if (packet.kind != PacketKind::kOpen) --data_inside_;
      if (!flows_[packet.flow].done) transport_->receive(packet);
      break;
    default:
      if (!flows_[packet.flow].done) transport_->answer(packet);
  }
  unref(packet.flow);
}

void PacketNetwork::enqueue(uint32_t number, const Packet& arrived) {
  if (arrived.kind != PacketKind::kData) {
    enqueueControl(number, arrived);
    return;
  }
  Port& port = ports_[number];
  Packet packet = arrived;
  const bool transit = packet.link != kOwnHost;
  if (transit && port.transit_bytes + packet.size_bytes > port.limit_bytes) {
    if (trims_) {
      trim(number, packet);
    } else {
      ++port.counts.dropped;
      drop(packet);
    }
    return;
  }
  if (!port.up || (options_.lossless && transit && !buffer(packet))) {
    ++port.counts.dropped;
    drop(packet);
    return;
  }
  port.queued_bytes += packet.size_bytes;
  if (transit) port.transit_bytes += packet.size_bytes;
  port.counts.most_queued_bytes = std::max(port.counts.most_queued_bytes, port.queued_bytes);
  if (!marks_on_departure_ && port.queued_bytes > port.mark_from_bytes) mark(port, packet);
  Channel& channel = channelOf(number, packet.next_channel);
  if (channel.data.empty()) channel.turns.push(kTransit);
  channel.data.push(packet);
  if (!port.busy) serve(number, false);
}

void PacketNetwork::enqueueControl(uint32_t number, const Packet& packet) {
  Port& port = ports_[number];
  if (!port.up) {
    ++port.counts.dropped;
    drop(packet);
    return;
  }
  if (options_.control_first) {
    port.control.push(packet);
  } else {
    Channel& channel = channelOf(number, 0);
    if (channel.data.empty()) channel.turns.push(kTransit);
    channel.data.push(packet);
  }
  if (!port.busy) serve(number, false);
}

// Random early detection between two queue sizes; a threshold if they are equal.
void PacketNetwork::mark(Port& port, Packet& packet) {
  if (port.queued_bytes <= port.mark_all_from_bytes) {
    const double place = static_cast<double>(port.queued_bytes - port.mark_from_bytes) /
                         static_cast<double>(port.mark_all_from_bytes - port.mark_from_bytes);
    if (chance() >= place * port.mark_probability) return;
  }
  packet.marked = true;
  ++port.counts.marked;
}

// Trims the new packet or the last queued one at random, so that synchronised senders are treated
// alike. The header precedes all data.
void PacketNetwork::trim(uint32_t number, Packet packet) {
  Port& port = ports_[number];
  ++port.counts.trimmed;
  RingBuffer<Packet>& data = channelOf(number, 0).data;
  if (!data.empty() && data.back().size_bytes >= packet.size_bytes && chance() < 0.5) {
    std::swap(data.back(), packet);
    const int64_t more = static_cast<int64_t>(data.back().size_bytes) - packet.size_bytes;
    port.queued_bytes += more;
    port.transit_bytes += more;
  }
  packet.kind = PacketKind::kTrimmed;
  packet.size_bytes = static_cast<uint32_t>(options_.header_bytes);
  enqueueControl(number, packet);
}

void PacketNetwork::drop(const Packet& packet) {
  ++dropped_;
  if (packet.kind == PacketKind::kData || packet.kind == PacketKind::kTrimmed) --data_inside_;
  if (packet.kind == PacketKind::kData && !flows_[packet.flow].done) transport_->lost(packet);
  unref(packet.flow);
}

void PacketNetwork::depart(uint32_t number) {
  Port& port = ports_[number];
  Packet packet = port.in_service;
  if (marks_on_departure_ && packet.kind == PacketKind::kData &&
      port.queued_bytes > port.mark_from_bytes) {
    mark(port, packet);
  }
  if (!port.cut) release(port, packet);
  packet.link = number;
  packet.channel = packet.next_channel;
  if (port.cut) {
    port.cut = false;
    drop(packet);
  } else {
    port.counts.wire_bytes += packet.size_bytes;
    if (packet.kind == PacketKind::kData) {
      ++port.counts.packets;
      ++packet_hops_;
      port.counts.payload_bytes += packet.size_bytes - options_.header_bytes;
    }
    lines_.push(port.line, now_, packet);
  }
  serve(number, true);
}

// Starts the next service of an idle port; `is_top`: its last service has just ended and is still
// the first event in the heap.
void PacketNetwork::serve(uint32_t number, bool is_top) {
  Port& port = ports_[number];
  uint32_t again = kTransit;  // the flow that was served
  if (!choose(number, again)) {
    port.busy = false;
    if (is_top) departures_.pop();
    offerNext();
    return;
  }
  port.busy = true;
  port.free_at = now_ + port.serviceTime(port.in_service.size_bytes);
  if (is_top) {
    departures_.replaceTop(port.free_at);
  } else {
    departures_.push(port.free_at, number);
  }
  if (again != kTransit) wake(again);
  offerNext();
}

// Starts serving the next packet; returns false if there is none.
bool PacketNetwork::choose(uint32_t number, uint32_t& again) {
  Port& port = ports_[number];
  if (!port.up) return false;
  if (!port.control.empty() &&
      !(trims_ && port.control_turns >= options_.ndp.headers_per_packet && dataWaits(number))) {
    port.in_service = port.control.pop();
    ++port.control_turns;
    return true;
  }
  for (uint32_t i = 0, at = port.first_channel; i < channel_count_; ++i) {
    Channel& channel = channelOf(number, at);
    at = at + 1 == channel_count_ ? 0 : at + 1;
    if (channel.paused || !chooseFrom(number, channel, again)) continue;
    port.first_channel = at;
    port.control_turns = 0;
    return true;
  }
  // No flow had data.
  if (port.control.empty()) return false;
  port.in_service = port.control.pop();
  return true;
}

bool PacketNetwork::dataWaits(uint32_t number) const {
  for (uint32_t i = 0; i < channel_count_; ++i) {
    const Channel& channel = channelOf(number, i);
    if (!channel.paused && !channel.turns.empty()) return true;
  }
  return false;
}

// Selects the next packet of an unpaused channel.
bool PacketNetwork::chooseFrom(uint32_t number, Channel& channel, uint32_t& again) {
  Port& port = ports_[number];
  if (held_) return chooseHeld(port, channel);
  while (!channel.turns.empty()) {
    const uint32_t turn = channel.turns.pop();
    if (turn == kTransit) {
      port.in_service = channel.data.pop();
      if (!channel.data.empty()) channel.turns.push(kTransit);
      return true;
    }
    if (turn == kOwnFlows) {
      channel.own_flows = takeOwn(number);
      if (!channel.own_flows) continue;
      channel.turns.push(kOwnFlows);
      return true;
    }
    if (takeFrom(turn, number)) {
      again = turn;
      return true;
    }
  }
  return false;
}

// Forwards only other nodes' packets; flows keep their turns.
bool PacketNetwork::chooseHeld(Port& port, Channel& channel) {
  if (channel.data.empty()) return false;
  port.in_service = channel.data.pop();
  if (!channel.data.empty()) return true;
  for (uint32_t i = channel.turns.size(); i > 0; --i) {
    const uint32_t turn = channel.turns.pop();
    if (turn != kTransit) channel.turns.push(turn);
  }
  return true;
}

// Takes the next packet of a flow. It may have none: its route has changed, or its data was
// acknowledged.
bool PacketNetwork::takeFrom(uint32_t slot, uint32_t number) {
  Flow& flow = flows_[slot];
  flow.listed = false;
  if (flow.done) {
    freeIfOver(slot);
    return false;
  }
  Picoseconds from = now_;
  if (firstPort(flow) != number || !transport_->ready(slot, from) || from > now_) {
    wake(slot);  // now on another port or later
    return false;
  }
  fill(slot, ports_[number].in_service);
  return true;
}

// Creates the next packet of a flow.
void PacketNetwork::fill(uint32_t slot, Packet& packet) {
  Flow& flow = flows_[slot];
  packet.flow = slot;
  packet.seq = transport_->take(slot);
  packet.value = 0;
  packet.hop = adaptive() ? flow.target : route_begin_[flow.route] + 1;
  packet.size_bytes = packet.seq + 1 == flow.packets ? flow.last_bytes : full_bytes_;
  packet.link = kNoLink;
  packet.kind = PacketKind::kData;
  packet.marked = false;
  packet.channel = packet.next_channel = 0;
  packet.detour = -1;
  ++flow.refs;
  ++data_inside_;
  chooseRoute(flow);
}

}  // namespace topoopt::packet
