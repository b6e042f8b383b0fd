// Senders at their first link's rate without congestion control, to study the links alone.

#include <vector>

#include "sim/packet/packet_network.h"
#include "sim/packet/transport.h"

namespace topoopt::packet {

namespace {

// A lost packet is sent again: the sender is notified at once, without a packet.
class Constant final : public Transport {
 public:
  explicit Constant(PacketNetwork& network) : network_(network) {}

  void begin(uint32_t slot) override {
    if (slot >= flows_.size()) flows_.resize(slot + 1);
    flows_[slot] = {};
    network_.wake(slot);
  }
  bool ready(uint32_t slot, Picoseconds& from) override {
    const Flow& flow = network_.flow(slot);
    if (flow.next_new < flow.packets) return true;
    return !flows_[slot].lost.empty() && network_.routeIsUp(flow);
  }
  uint32_t take(uint32_t slot) override {
    Flow& flow = network_.flow(slot);
    if (flow.next_new < flow.packets) return flow.next_new++;
    std::vector<uint32_t>& lost = flows_[slot].lost;
    const uint32_t seq = lost.back();
    lost.pop_back();
    return seq;
  }
  void receive(const Packet& packet) override {
    if (++flows_[packet.flow].received == network_.flow(packet.flow).packets) {
      network_.complete(packet.flow);
    }
  }
  void answer(const Packet& packet) override {}
  void lost(const Packet& packet) override {
    flows_[packet.flow].lost.push_back(packet.seq);
    network_.wake(packet.flow);
  }
  bool hasTimeouts() const override { return false; }
  void end(uint32_t slot) override { flows_[slot] = {}; }

 private:
  struct State {
    uint32_t received = 0;
    std::vector<uint32_t> lost;
  };

  PacketNetwork& network_;
  std::vector<State> flows_;
};

}  // namespace

std::unique_ptr<Transport> makeConstant(PacketNetwork& network, const PacketOptions&) {
  return std::make_unique<Constant>(network);
}

}  // namespace topoopt::packet
