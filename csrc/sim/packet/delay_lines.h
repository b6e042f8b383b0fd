// Items with a fixed delay: propagation in fibres, acknowledgements without a path.

#pragma once

#include <map>
#include <vector>

#include "sim/packet/event_heap.h"
#include "sim/packet/packet.h"
#include "sim/packet/ring_buffer.h"

namespace topoopt::packet {

// Packets with equal delays share a line, which they leave in order, without any search. Only the
// lines (one per distinct delay) are in a heap.
class DelayLines {
 public:
  uint32_t lineOf(Picoseconds delay) {
    const auto [it, is_new] = numbers_.try_emplace(delay, static_cast<uint32_t>(lines_.size()));
    if (is_new) lines_.push_back({delay, {}});
    return it->second;
  }
  Picoseconds delay(uint32_t line) const { return lines_[line].delay; }

  void push(uint32_t line, Picoseconds now, const Packet& packet) {
    Line& l = lines_[line];
    if (l.packets.empty()) heads_.push(now + l.delay, line);
    l.packets.push({now + l.delay, packet});
  }

  Picoseconds topTime() const { return heads_.topTime(); }

  Packet pop() {
    Line& line = lines_[heads_.topSource()];
    const Packet packet = line.packets.pop().packet;
    if (line.packets.empty()) {
      heads_.pop();
    } else if (line.packets.front().time != heads_.topTime()) {
      heads_.replaceTop(line.packets.front().time);
    }
    return packet;
  }

  // Also removes the lines.
  void clear() {
    heads_.clear();
    lines_.clear();
    numbers_.clear();
  }

 private:
  struct Entry {
    Picoseconds time;
    Packet packet;
  };
  struct Line {
    Picoseconds delay;
    RingBuffer<Entry> packets;
  };

  std::vector<Line> lines_;
  std::map<Picoseconds, uint32_t> numbers_;
  EventHeap heads_;
};

}  // namespace topoopt::packet
