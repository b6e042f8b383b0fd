// A directed link and its output queue.

#pragma once

#include <cmath>
#include <cstdint>

#include "sim/packet/packet.h"
#include "sim/packet/ring_buffer.h"

namespace topoopt::packet {

// Totals of one link.
struct LinkCounts {
  int64_t packets = 0;        // data packets sent
  int64_t payload_bytes = 0;  // of data packets
  int64_t wire_bytes = 0;     // of all packets
  int64_t dropped = 0, trimmed = 0, marked = 0, pauses = 0;
  int64_t most_queued_bytes = 0;
};

constexpr uint32_t kTransit = 0xffffffff;   // in `turns`: the queue of packets from other nodes
constexpr uint32_t kOwnFlows = 0xfffffffe;  // adaptive routing: all flows from this node
constexpr int64_t kUnlimited = std::numeric_limits<int64_t>::max();

// A virtual channel of a link: its queue, and the buffer at its end. Data comes from other nodes
// through the queue, or from local flows. Those create a packet only when it can leave, like
// network cards, so unsent bytes need no memory. The queue and each flow take turns by packet.
struct Channel {
  RingBuffer<Packet> data;
  RingBuffer<uint32_t> turns;  // flows with data, and kTransit if `data` is not empty
  bool own_flows = false;      // kOwnFlows is in `turns`
  bool paused = false;         // by the link's end node

  // PFC: bytes from this channel in the end node's buffer.
  int64_t buffered_bytes = 0;
  bool pausing = false;  // the node has paused it
};

// A port serves control packets before data, and its channels in turn by packet.
struct Port {
  RingBuffer<Packet> control;
  Packet in_service;
  Picoseconds free_at = 0;  // end of the current service
  Picoseconds full_packet_time = 0;
  double bits_per_s = 0;
  uint32_t full_packet_bytes = 0;
  uint32_t line = 0;      // delay line of its latency
  int control_turns = 0;  // control packets since the last of data
  bool busy = false;
  bool cut = false;  // the packet in service was lost with its link
  bool up = true;
  uint32_t first_channel = 0;  // next in turn

  int64_t queued_bytes = 0;          // data, including the packet in service from the queue
  int64_t transit_bytes = 0;         // of other nodes
  int64_t limit_bytes = kUnlimited;  // of transit_bytes
  int64_t mark_from_bytes = kUnlimited, mark_all_from_bytes = kUnlimited;
  double mark_probability = 1;
  Picoseconds latency = 0;
  Picoseconds down_at = -1;  // last failure

  int64_t buffer_limit_bytes = kUnlimited;  // of each channel's buffer, with PFC

  LinkCounts counts;

  void setRate(double rate_bits_per_s, uint32_t full_bytes) {
    bits_per_s = rate_bits_per_s;
    full_packet_bytes = full_bytes;
    full_packet_time = time(full_bytes);
  }
  // Rounded up, so that no link exceeds its rate.
  Picoseconds time(uint32_t size_bytes) const {
    return static_cast<Picoseconds>(
        std::ceil(size_bytes * (8 * kPicosecondsPerSecond) / bits_per_s));
  }
  Picoseconds serviceTime(uint32_t size_bytes) const {
    return size_bytes == full_packet_bytes ? full_packet_time : time(size_bytes);
  }
};

}  // namespace topoopt::packet
