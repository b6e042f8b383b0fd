// RoCE v2: rate-based senders, go-back-N, and DCQCN (Zhu et al., SIGCOMM 2015) for the rate.

#include <algorithm>
#include <cmath>
#include <vector>

#include "sim/packet/packet_network.h"
#include "sim/packet/transport.h"

namespace topoopt::packet {

namespace {

constexpr double kFullRate = 0.999;  // fraction of the link's rate considered unlimited

class Roce final : public Transport {
 public:
  Roce(PacketNetwork& network, const PacketOptions& options)
      : network_(network),
        options_(options.dcqcn),
        controlled_(options.transport == "dcqcn"),
        packets_per_ack_(static_cast<uint32_t>(options.roce.packets_per_ack)),
        full_bytes_(static_cast<uint32_t>(options.payload_bytes + options.header_bytes)),
        timeout_(toPicoseconds(options.retransmission_timeout_s)),
        congestion_interval_(toPicoseconds(options_.congestion_interval_s)),
        alpha_interval_(toPicoseconds(options_.alpha_interval_s)),
        increase_interval_(toPicoseconds(options_.increase_interval_s)) {}

  void begin(uint32_t slot) override {
    if (slot >= flows_.size()) flows_.resize(slot + 1);
    flows_[slot] = {};
    flows_[slot].progress_at = network_.now();
    network_.wake(slot);
  }

  bool ready(uint32_t slot, Picoseconds& from) override {
    const Flow& flow = network_.flow(slot);
    if (flow.next_new >= flow.packets) return false;
    if (flows_[slot].limited) from = std::max(from, flows_[slot].next_at);
    return true;
  }

  uint32_t take(uint32_t slot) override {
    State& state = flows_[slot];
    Flow& flow = network_.flow(slot);
    state.progress_at = network_.now();
    if (state.limited) {
      const double line = network_.port(network_.firstPort(flow)).bits_per_s;
      raise(state, line, full_bytes_);
      const double seconds = full_bytes_ * 8.0 / state.rate;
      state.next_at = network_.now() + toPicoseconds(seconds);
    }
    return flow.next_new++;
  }

  void receive(const Packet& packet) override {
    State& state = flows_[packet.flow];
    if (packet.marked && controlled_ &&
        (state.notified_at < 0 || network_.now() - state.notified_at >= congestion_interval_)) {
      state.notified_at = network_.now();
      network_.sendBack(packet.flow, PacketKind::kCongestion, 0, 0, false);
    }
    if (packet.seq == state.expected) {
      state.complained = false;
      if (++state.expected == network_.flow(packet.flow).packets) {
        network_.complete(packet.flow);
      } else if (state.expected % packets_per_ack_ == 0) {
        network_.sendBack(packet.flow, PacketKind::kAck, 0, state.expected, false);
      }
    } else if (packet.seq > state.expected && !state.complained) {
      state.complained = true;
      network_.sendBack(packet.flow, PacketKind::kNack, 0, state.expected, false);
    }
  }

  void answer(const Packet& packet) override {
    State& state = flows_[packet.flow];
    Flow& flow = network_.flow(packet.flow);
    if (packet.kind == PacketKind::kCongestion) {
      slowDown(state, network_.port(network_.firstPort(flow)).bits_per_s);
      return;
    }
    if (packet.value > state.acked) {
      state.acked = packet.value;
      state.progress_at = network_.now();
      state.backoff = 0;
      flow.next_new = std::max(flow.next_new, state.acked);
    }
    if (packet.kind == PacketKind::kNack && packet.value >= state.acked) goBack(packet.flow);
  }

  void checkTimeout(uint32_t slot) override {
    State& state = flows_[slot];
    if (network_.flow(slot).next_new == state.acked) return;
    if (network_.now() - state.progress_at < timeout_ << state.backoff) return;
    state.backoff = std::min(state.backoff + 1, kMostBackoff);
    goBack(slot);
  }

  void resume(uint32_t slot) override { flows_[slot].progress_at = network_.now(); }

  void end(uint32_t slot) override { flows_[slot] = {}; }

 private:
  struct State {
    uint32_t acked = 0;
    uint32_t expected = 0;    // at the receiver
    bool complained = false;  // a NACK was sent for the current gap
    bool limited = false;     // below the rate of the link
    int backoff = 0;
    int time_steps = 0, byte_steps = 0;
    double bytes = 0;  // since the last step by bytes
    double rate = 0, target = 0, alpha = 1;
    Picoseconds progress_at = 0, next_at = 0, notified_at = -1;
    Picoseconds alpha_at = 0, increase_at = 0;  // the next steps by time
  };

  void goBack(uint32_t slot) {
    State& state = flows_[slot];
    state.progress_at = network_.now();
    network_.flow(slot).next_new = state.acked;
    network_.wake(slot);
  }

  // Handles a congestion notification.
  void slowDown(State& state, double line) {
    if (!state.limited) {
      state.limited = true;
      state.rate = line;
      state.next_at = network_.now();
    } else {
      raise(state, line, 0);
    }
    state.target = state.rate;
    state.rate = std::max(state.rate * (1 - state.alpha / 2), options_.least_part * line);
    state.alpha = (1 - options_.gain) * state.alpha + options_.gain;
    state.time_steps = state.byte_steps = 0;
    state.bytes = 0;
    state.alpha_at = network_.now() + alpha_interval_;
    state.increase_at = network_.now() + increase_interval_;
    state.limited = true;
  }

  // Advances alpha and the rate to now, after `sent_bytes` more. The rate matters only when a
  // packet leaves, so its timers need no events.
  void raise(State& state, double line, uint32_t sent_bytes) {
    const Picoseconds now = network_.now();
    if (state.alpha_at <= now) {
      const Picoseconds steps = (now - state.alpha_at) / alpha_interval_ + 1;
      state.alpha *= std::pow(1 - options_.gain, static_cast<double>(steps));
      state.alpha_at += steps * alpha_interval_;
    }
    while (state.limited && state.increase_at <= now) {
      ++state.time_steps;
      increase(state, line);
      state.increase_at += increase_interval_;
    }
    state.bytes += sent_bytes;
    if (state.limited && state.bytes >= static_cast<double>(options_.increase_bytes)) {
      state.bytes = 0;
      ++state.byte_steps;
      increase(state, line);
    }
  }

  void increase(State& state, double line) {
    const int least = std::min(state.time_steps, state.byte_steps);
    const int most = std::max(state.time_steps, state.byte_steps);
    if (least > options_.recovery_steps) {
      state.target += options_.hyper_part * line;
    } else if (most > options_.recovery_steps) {
      state.target += options_.additive_part * line;
    }
    state.target = std::min(state.target, line);
    state.rate = (state.rate + state.target) / 2;
    if (state.rate >= kFullRate * line) {
      state.rate = line;
      state.limited = false;
    }
  }

  PacketNetwork& network_;
  PacketOptions::DcqcnOptions options_;
  bool controlled_;
  uint32_t packets_per_ack_;
  uint32_t full_bytes_;
  Picoseconds timeout_, congestion_interval_, alpha_interval_, increase_interval_;
  std::vector<State> flows_;
};

}  // namespace

std::unique_ptr<Transport> makeRoce(PacketNetwork& network, const PacketOptions& options) {
  return std::make_unique<Roce>(network, options);
}

}  // namespace topoopt::packet
