// DCTCP (RFC 8257) on a NewReno sender: the marked fraction of packets cuts the window.

#include <algorithm>
#include <vector>

#include "sim/packet/packet_network.h"
#include "sim/packet/received.h"
#include "sim/packet/transport.h"

namespace topoopt::packet {

namespace {

constexpr int kDuplicates = 3;  // duplicate acknowledgements that indicate a loss
constexpr double kLeastWindow = 1;

class Dctcp final : public Transport {
 public:
  Dctcp(PacketNetwork& network, const PacketOptions& options)
      : network_(network),
        options_(options.dctcp),
        timeout_(toPicoseconds(options.retransmission_timeout_s)) {}

  void begin(uint32_t slot) override {
    if (slot >= flows_.size()) flows_.resize(slot + 1);
    State& state = flows_[slot] = {};
    state.window = options_.initial_window_packets;
    if (options_.cut_every_window) {
      state.alpha = 0;
      state.seen = 1;
    }
    state.progress_at = network_.now();
    state.open = !options_.handshake;
    network_.wake(slot);
  }

  bool ready(uint32_t slot, Picoseconds& from) override {
    State& state = flows_[slot];
    const Flow& flow = network_.flow(slot);
    if (!state.open && !state.connecting) {  // open the connection when it could send
      state.connecting = true;
      network_.sendForward(slot, PacketKind::kOpen);
    }
    if (!state.open) return false;
    return state.resend || (flow.next_new < flow.packets &&
                            flow.next_new - state.acked < static_cast<uint32_t>(state.window));
  }

  uint32_t take(uint32_t slot) override {
    State& state = flows_[slot];
    if (state.resend) {
      state.resend = false;
      return state.acked;
    }
    Flow& flow = network_.flow(slot);
    if (flow.next_new == state.acked) state.progress_at = network_.now();  // the timeout starts
    return flow.next_new++;
  }

  void receive(const Packet& packet) override {
    State& state = flows_[packet.flow];
    if (packet.kind == PacketKind::kOpen) {
      network_.sendBack(packet.flow, PacketKind::kOpened, 0, 0, false);
      return;
    }
    state.received.add(packet.seq);
    const uint32_t expected = state.received.expected();
    if (expected == network_.flow(packet.flow).packets) {
      network_.complete(packet.flow);
    } else {
      network_.sendBack(packet.flow, PacketKind::kAck, packet.seq, expected, packet.marked);
    }
  }

  void answer(const Packet& packet) override {
    State& state = flows_[packet.flow];
    if (packet.kind == PacketKind::kOpened) {
      state.open = true;
    } else {
      acknowledge(state, network_.flow(packet.flow), packet.value, packet.marked);
    }
    network_.wake(packet.flow);
  }

  // A retransmission timeout: restart after the acknowledged packets with a window of one.
  void checkTimeout(uint32_t slot) override {
    State& state = flows_[slot];
    Flow& flow = network_.flow(slot);
    const bool waits = !state.open || flow.next_new > state.acked;
    if (!waits || network_.now() - state.progress_at < timeout_ << state.backoff) return;
    state.progress_at = network_.now();
    state.backoff = std::min(state.backoff + 1, kMostBackoff);
    state.slow_start_below = std::max(state.window / 2, 2.0);
    state.window = kLeastWindow;
    if (!state.open) {
      network_.sendForward(slot, PacketKind::kOpen);
      return;
    }
    flow.next_new = state.acked;
    state.recovering = state.resend = false;
    state.duplicates = 0;
    network_.wake(slot);
  }

  void resume(uint32_t slot) override { flows_[slot].progress_at = network_.now(); }

  void end(uint32_t slot) override { flows_[slot] = {}; }

 private:
  struct State {
    double window = 0;  // packets
    double slow_start_below = 1e18;
    double alpha = 1;             // estimate of the marked fraction
    uint32_t acked = 0;           // all earlier packets are acknowledged
    uint32_t recover = 0;         // recovery ends when all earlier packets are acknowledged
    uint32_t cut_until = 0;       // no further cut before this is acknowledged
    uint32_t observed_until = 0;  // end of the window of `seen` and `marked`
    uint32_t seen = 0, marked = 0;
    double window_acks = 2;  // with cut_every_window: size of that window
    int duplicates = 0;
    int backoff = 0;
    bool open = false, connecting = false, recovering = false, resend = false;
    Picoseconds progress_at = 0;
    Received received;
  };

  void acknowledge(State& state, Flow& flow, uint32_t acked, bool marked) {
    ++state.seen;
    if (marked) ++state.marked;
    if (options_.cut_every_window) endWindow(state, marked);
    if (acked > state.acked) {
      advance(state, flow, acked);
    } else if (flow.next_new > state.acked) {
      ++state.duplicates;
      if (state.recovering) {
        state.window += 1;  // a packet has left the network
      } else if (state.duplicates == kDuplicates && state.acked >= state.recover) {
        state.recovering = state.resend = true;
        state.recover = flow.next_new;
        state.slow_start_below = std::max(state.window / 2, 2.0);
        state.window = state.slow_start_below + kDuplicates;
      }
    }
    if (options_.cut_every_window) return;
    if (marked && !state.recovering && state.acked >= state.cut_until) {
      cut(state);
      state.cut_until = flow.next_new;
    }
    if (state.acked >= state.observed_until) {
      estimate(state);
      state.observed_until = flow.next_new;
    }
  }

  // The check of the paper's simulator, before it counts an acknowledgement.
  void endWindow(State& state, bool marked) const {
    if (marked) state.slow_start_below = std::min(state.slow_start_below, state.window);
    if (state.seen < state.window_acks) return;
    estimate(state);
    if (state.alpha > 0) cut(state);
    state.window_acks = state.window;
  }

  void estimate(State& state) const {
    const double part = static_cast<double>(state.marked) / state.seen;
    state.alpha += options_.gain * (part - state.alpha);
    state.seen = state.marked = 0;
  }

  static void cut(State& state) {
    state.window = std::max(state.window * (1 - state.alpha / 2), kLeastWindow);
    state.slow_start_below = state.window;
  }

  // Packets that grow the window. The paper's simulator limits them to the window's room, so there
  // are none until earlier packets fit it after a cut.
  double growth(const State& state, const Flow& flow, uint32_t more) const {
    if (!options_.cut_every_window) return more;
    return std::clamp(state.acked + state.window - flow.next_new, 0.0, 1.0);
  }

  void advance(State& state, Flow& flow, uint32_t acked) {
    const uint32_t more = acked - state.acked;
    state.acked = acked;
    flow.next_new = std::max(flow.next_new, acked);  // packets may have arrived before a timeout
    state.progress_at = network_.now();
    state.backoff = 0;
    state.duplicates = 0;
    if (state.recovering) {
      if (acked >= state.recover) {
        state.recovering = false;
        state.window = state.slow_start_below;
      } else {  // the next hole
        state.resend = true;
        state.window = std::max(state.window - more + 1, kLeastWindow);
      }
    } else if (state.window < state.slow_start_below) {
      state.window += growth(state, flow, more);
    } else {
      state.window += growth(state, flow, more) / state.window;
    }
  }

  PacketNetwork& network_;
  PacketOptions::DctcpOptions options_;
  Picoseconds timeout_;
  std::vector<State> flows_;
};

}  // namespace

std::unique_ptr<Transport> makeDctcp(PacketNetwork& network, const PacketOptions& options) {
  return std::make_unique<Dctcp>(network, options);
}

}  // namespace topoopt::packet
