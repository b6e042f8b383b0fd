// NDP (Handley et al., SIGCOMM 2017): full queues trim packets to headers, and receivers pull.

#include <algorithm>
#include <vector>

#include "sim/packet/packet_network.h"
#include "sim/packet/received.h"
#include "sim/packet/transport.h"

namespace topoopt::packet {

namespace {

// A sender starts with a window at full rate; every further packet needs a pull. The receiver sends
// pulls at its link's rate for full packets, round robin over flows.
class Ndp final : public Transport {
 public:
  Ndp(PacketNetwork& network, const PacketOptions& options)
      : network_(network),
        window_(static_cast<uint32_t>(options.ndp.initial_window_packets)),
        timeout_(toPicoseconds(options.retransmission_timeout_s)) {}

  void begin(uint32_t slot) override {
    if (slot >= flows_.size()) flows_.resize(slot + 1);
    State& state = flows_[slot] = {};
    const uint32_t packets = network_.flow(slot).packets;
    state.credits = std::min(window_, packets);
    state.to_grant = packets - state.credits;
    state.progress_at = network_.now();
    network_.wake(slot);
  }

  bool ready(uint32_t slot, Picoseconds& from) override {
    const State& state = flows_[slot];
    const Flow& flow = network_.flow(slot);
    return state.credits > 0 && (!state.again.empty() || flow.next_new < flow.packets);
  }

  uint32_t take(uint32_t slot) override {
    State& state = flows_[slot];
    --state.credits;
    if (state.again.empty()) return network_.flow(slot).next_new++;
    const uint32_t seq = state.again.back();
    state.again.pop_back();
    return seq;
  }

  void receive(const Packet& packet) override {
    State& state = flows_[packet.flow];
    const Flow& flow = network_.flow(packet.flow);
    state.progress_at = network_.now();
    if (packet.kind == PacketKind::kTrimmed) {
      if (state.received.has(packet.seq)) return;
      ++state.to_grant;
      network_.sendBack(packet.flow, PacketKind::kNack, packet.seq, 0, false);
    } else {
      state.received.add(packet.seq);
      if (state.received.count() == flow.packets) {
        network_.complete(packet.flow);
        return;
      }
    }
    if (state.to_grant == 0) return;
    --state.to_grant;
    ++state.owed;
    if (!state.queued) {
      state.queued = true;
      queuePull(network_.lastPort(flow), packet.flow);
    }
  }

  void answer(const Packet& packet) override {
    State& state = flows_[packet.flow];
    if (packet.kind == PacketKind::kNack) {
      state.again.push_back(packet.seq);
    } else {
      ++state.credits;
    }
    network_.wake(packet.flow);
  }

  void pace(uint32_t port) override {
    Pacer& pacer = pacers_[port];
    pacer.scheduled = false;
    while (!pacer.flows.empty()) {
      const uint32_t slot = pacer.flows.pop();
      State& state = flows_[slot];
      if (network_.flow(slot).done || state.owed == 0) {
        state.queued = false;
        network_.unref(slot);
        continue;
      }
      pacer.next_at = network_.now() + network_.port(port).full_packet_time;
      if (--state.owed > 0) {
        pacer.flows.push(slot);
      } else {
        state.queued = false;
      }
      network_.sendBack(slot, PacketKind::kPull, 0, 0, false);
      if (!state.queued) network_.unref(slot);
      break;
    }
    schedule(port);
  }

  // All packets of the flow, and their trimmed headers, are lost.
  void checkTimeout(uint32_t slot) override {
    State& state = flows_[slot];
    Flow& flow = network_.flow(slot);
    if (flow.refs > 0 || flow.listed || network_.now() - state.progress_at < timeout_) return;
    state.again.clear();
    for (uint32_t seq = state.received.expected(); seq < flow.next_new; ++seq) {
      if (!state.received.has(seq)) state.again.push_back(seq);
    }
    const uint32_t missing = flow.packets - state.received.count();
    state.credits = std::min(window_, missing);
    state.to_grant = missing - state.credits;
    state.progress_at = network_.now();
    network_.wake(slot);
  }

  void resume(uint32_t slot) override { flows_[slot].progress_at = network_.now(); }

  void end(uint32_t slot) override { flows_[slot] = {}; }

 private:
  struct State {
    uint32_t credits = 0;   // packets that the sender may send
    uint32_t to_grant = 0;  // needed transmissions without credit or pull
    uint32_t owed = 0;      // waiting pulls
    bool queued = false;    // in the pacer
    Picoseconds progress_at = 0;
    std::vector<uint32_t> again;  // trimmed packets
    Received received;
  };
  struct Pacer {
    RingBuffer<uint32_t> flows;
    Picoseconds next_at = 0;
    bool scheduled = false;
  };

  void queuePull(uint32_t port, uint32_t slot) {
    if (port >= pacers_.size()) pacers_.resize(port + 1);
    pacers_[port].flows.push(slot);
    ++network_.flow(slot).refs;
    schedule(port);
  }

  void schedule(uint32_t port) {
    Pacer& pacer = pacers_[port];
    if (pacer.scheduled || pacer.flows.empty()) return;
    pacer.scheduled = true;
    network_.schedulePacer(port, std::max(network_.now(), pacer.next_at));
  }

  PacketNetwork& network_;
  uint32_t window_;
  Picoseconds timeout_;
  std::vector<State> flows_;
  std::vector<Pacer> pacers_;  // per delivering port
};

}  // namespace

std::unique_ptr<Transport> makeNdp(PacketNetwork& network, const PacketOptions& options) {
  return std::make_unique<Ndp>(network, options);
}

}  // namespace topoopt::packet
