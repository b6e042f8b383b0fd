// The contract of a transport: what a sender and a receiver do about one flow.

#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "sim/packet/options.h"
#include "sim/packet/packet.h"

namespace topoopt {
class FlowProgram;
}

namespace topoopt::packet {

class PacketNetwork;

constexpr int kMostBackoff = 6;  // doublings of the time after which packets are sent again

// A flow under way, in a slot that is used again after its end.
struct Flow {
  int number;           // the caller's
  uint32_t route;       // of its next packet
  uint32_t target;      // node
  uint32_t packets;     // in all
  uint32_t last_bytes;  // of the last packet, on the wire
  uint32_t next_new;  // the first packet that has never been sent, or is to be sent again with all
                      // that follow it
  uint32_t refs;      // packets and timers that name the slot
  uint32_t fan;       // the set of routes it is sprayed over, or kNoLink
  bool live;
  bool listed;  // among the turns of its first port
  bool timed;   // has a timer for its next packet
  bool done;    // all delivered
};

// One instance serves all flows of a network; state per flow is in arrays by slot.
class Transport {
 public:
  virtual ~Transport() = default;

  // A flow begins in `slot`.
  virtual void begin(uint32_t slot) = 0;
  // Whether the flow has a packet that its sender may send; if that is a matter of time only, the
  // time from which on goes to `from` (at first the time at which the port is free).
  virtual bool ready(uint32_t slot, Picoseconds& from) = 0;
  // The number of the packet to send now. Called only if ready.
  virtual uint32_t take(uint32_t slot) = 0;
  // A packet of kind kData, kTrimmed or kOpen has reached the receiver.
  virtual void receive(const Packet& packet) = 0;
  // Something that the receiver said has reached the sender.
  virtual void answer(const Packet& packet) = 0;
  // A packet of data was lost. Facts that no sender could know may not be used.
  virtual void lost(const Packet& packet) {}
  // Called for every flow under way a few times per timeout, while its route is whole.
  virtual void checkTimeout(uint32_t slot) {}
  // All senders were held until now: that time counts for no timeout.
  virtual void resume(uint32_t slot) {}
  virtual bool hasTimeouts() const { return true; }
  // The slot is free again.
  virtual void end(uint32_t slot) {}
  // The pacer of `port` (see PacketNetwork::schedulePacer) is due.
  virtual void pace(uint32_t port) {}
};

// Every transport: its name, and the function in its own file that makes it. "dcqcn" is "roce" with
// DCQCN's control of the rate.
// clang-format off: a line each
#define TOPOOPT_TRANSPORTS(entry) \
  entry("constant", makeConstant) \
  entry("dctcp", makeDctcp)       \
  entry("roce", makeRoce)         \
  entry("dcqcn", makeRoce)        \
  entry("ndp", makeNdp)
// clang-format on

#define TOPOOPT_DECLARE(name, make) \
  std::unique_ptr<Transport> make(PacketNetwork& network, const PacketOptions& options);
TOPOOPT_TRANSPORTS(TOPOOPT_DECLARE)
#undef TOPOOPT_DECLARE

// The names.
std::vector<std::string> transports();

// The one that `options` name. Throws std::invalid_argument for a name that is not known.
std::unique_ptr<Transport> makeTransport(PacketNetwork& network, const PacketOptions& options);

}  // namespace topoopt::packet
