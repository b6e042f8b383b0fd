// Paused (full buffer) and failed links, and deadlocks caused by pauses.

#include <algorithm>
#include <map>
#include <stdexcept>
#include <string>

#include "sim/packet/packet_network.h"

namespace topoopt::packet {

namespace {

constexpr Picoseconds kWatchInterval = 1'000'000'000;  // 1 ms

}  // namespace

// PFC: stores the packet in the buffer at the end of its link; returns false if that is full
// despite the pause.
bool PacketNetwork::buffer(const Packet& packet) {
  Port& from = ports_[packet.link];
  Channel& channel = channelOf(packet.link, packet.channel);
  if (channel.buffered_bytes + packet.size_bytes > from.buffer_limit_bytes) return false;
  channel.buffered_bytes += packet.size_bytes;
  if (!channel.pausing && channel.buffered_bytes > options_.pause_above_bytes) {
    channel.pausing = true;
    ++from.counts.pauses;
    signalPause(packet.link, packet.channel, PacketKind::kPause);
  }
  return true;
}

void PacketNetwork::unbuffer(const Packet& packet) {
  Channel& from = channelOf(packet.link, packet.channel);
  from.buffered_bytes -= packet.size_bytes;
  if (from.pausing && from.buffered_bytes <= options_.resume_below_bytes) {
    from.pausing = false;
    signalPause(packet.link, packet.channel, PacketKind::kResume);
  }
}

// Pause frames have the link's latency but use no bandwidth.
void PacketNetwork::signalPause(uint32_t number, uint32_t channel, PacketKind kind) {
  Packet packet{};
  packet.link = number;
  packet.channel = static_cast<uint8_t>(channel);
  packet.kind = kind;
  lines_.push(ports_[number].line, now_, packet);
}

void PacketNetwork::takePause(uint32_t number, uint32_t channel, bool paused) {
  channelOf(number, channel).paused = paused;
  if (paused) {
    watch();
  } else if (!ports_[number].busy) {
    serve(number, false);
  }
}

void PacketNetwork::watch() {
  if (watching_) return;
  if (std::ranges::none_of(channels_, [](const Channel& c) { return c.paused; })) return;
  watching_ = true;
  timers_.push(now_ + kWatchInterval, kDeadlock);
}

// A paused channel resumes when enough of its packets have left the next node. Removes from all
// paused channels those that would resume even if the rest never did; the remaining ones are
// deadlocked.
std::vector<uint32_t> PacketNetwork::findDeadlock() const {
  std::vector<char> stuck(channels_.size(), 0);
  // Bytes of one channel that wait for another.
  std::map<std::pair<uint32_t, uint32_t>, int64_t> held;
  for (uint32_t number = 0; number < channels_.size(); ++number) {
    const Channel& channel = channels_[number];
    stuck[number] = channel.paused && channel.pausing;
    if (!stuck[number]) continue;
    for (uint32_t i = 0; i < channel.data.size(); ++i) {
      const Packet& packet = channel.data[i];
      if (packet.link == kOwnHost) continue;
      held[{packet.link * channel_count_ + packet.channel, number}] += packet.size_bytes;
    }
  }
  for (bool changed = true; changed;) {
    changed = false;
    std::vector<int64_t> stays(channels_.size(), 0);
    for (const auto& [link_and_port, bytes] : held) {
      if (stuck[link_and_port.second]) stays[link_and_port.first] += bytes;
    }
    for (size_t number = 0; number < channels_.size(); ++number) {
      if (!stuck[number] || stays[number] > options_.resume_below_bytes) continue;
      stuck[number] = 0;
      changed = true;
    }
  }
  const auto first = std::ranges::find(stuck, 1);
  if (first == stuck.end()) return {};
  std::vector<uint32_t> order;
  std::vector<char> seen(channels_.size(), 0);
  uint32_t at = static_cast<uint32_t>(first - stuck.begin());
  while (!seen[at]) {
    seen[at] = 1;
    order.push_back(at);
    for (auto it = held.lower_bound({at, 0}); it != held.end() && it->first.first == at; ++it) {
      if (!stuck[it->first.second]) continue;
      at = it->first.second;
      break;
    }
  }
  order.erase(order.begin(), std::ranges::find(order, at));
  return order;
}

void PacketNetwork::failIfDeadlocked() const {
  if (!options_.lossless) return;
  const std::vector<uint32_t> cycle = findDeadlock();
  if (cycle.empty()) return;
  std::string text;
  for (uint32_t number : cycle) {
    const ProgramLink& link = links_[number / channel_count_];
    text += "link " + std::to_string(link.id) + " (" + std::to_string(link.source) + " to " +
            std::to_string(link.target);
    if (channel_count_ > 1) text += ", channel " + std::to_string(number % channel_count_);
    text += ") waits for ";
  }
  throw std::invalid_argument("lossless: deadlock at " + std::to_string(toSeconds(now_)) +
                              " s: " + text + "link " +
                              std::to_string(links_[cycle.front() / channel_count_].id) +
                              "; routes whose links form no such cycle, or lossy queues, avoid it");
}

// A failing link loses its queued, current and propagating packets.
void PacketNetwork::changeLink(int number, double bits_per_s, double now_s) {
  now_ = std::max(now_, toPicoseconds(now_s));
  Port& port = ports_[number];
  if (bits_per_s > 0) {
    port.setRate(bits_per_s, full_bytes_);
    if (port.up) return;
    port.up = true;
    --down_links_;
    for (uint32_t i = 0; i < channel_count_; ++i) {
      Channel& channel = channelOf(static_cast<uint32_t>(number), i);
      channel.paused = channel.pausing;
    }
    if (!port.busy) serve(static_cast<uint32_t>(number), false);
    restartAll();
    return;
  }
  if (!port.up) return;
  if (adaptive()) {
    throw std::invalid_argument("changes: link " + std::to_string(links_[number].id) +
                                " cannot fail where path_choice is adaptive: its packets may have "
                                "no other way");
  }
  port.up = false;
  port.down_at = now_;
  port.cut = port.busy;
  ++down_links_;
  if (port.busy) release(port, port.in_service);
  Channel& channel = channelOf(static_cast<uint32_t>(number), 0);  // the only one
  while (!channel.data.empty()) {
    const Packet packet = channel.data.pop();
    release(port, packet);
    ++port.counts.dropped;
    drop(packet);
  }
  while (!port.control.empty()) {
    ++port.counts.dropped;
    drop(port.control.pop());
  }
  unlist(static_cast<uint32_t>(number));
  channel.turns.clear();  // that of the queue, which is empty now
  restartAll();           // flows with several routes use the others
}

void PacketNetwork::release(Port& port, const Packet& packet) {
  if (packet.kind != PacketKind::kData || packet.link == kNoLink) return;
  port.queued_bytes -= packet.size_bytes;
  if (packet.link == kOwnHost) return;
  port.transit_bytes -= packet.size_bytes;
  if (options_.lossless) unbuffer(packet);
}

}  // namespace topoopt::packet
