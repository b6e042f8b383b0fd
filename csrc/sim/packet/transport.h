// The interface of a transport: sender and receiver of each flow.

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

constexpr int kMostBackoff = 6;  // doublings of the retransmission timeout

// An active flow, in a reusable slot.
struct Flow {
  int number;           // the caller's id
  uint32_t route;       // of its next packet
  uint32_t target;      // node
  uint32_t packets;     // in total
  uint32_t last_bytes;  // of the last packet, on the wire
  uint32_t next_new;    // first packet never sent, or to be resent with all later ones
  uint32_t refs;        // packets and timers that refer to the slot
  uint32_t fan;         // set of routes for spraying, or kNoLink
  bool live;
  bool listed;  // in the turns of its first port
  bool timed;   // has a timer for its next packet
  bool done;    // all delivered
};

// One instance serves all flows of a network; per-flow state is in arrays by slot.
class Transport {
 public:
  virtual ~Transport() = default;

  // A flow begins in `slot`.
  virtual void begin(uint32_t slot) = 0;
  // Returns whether the sender may send a packet. If it only has to wait, sets `from` (initially
  // when the port is free) to the time.
  virtual bool ready(uint32_t slot, Picoseconds& from) = 0;
  // Returns the packet to send now. Requires ready().
  virtual uint32_t take(uint32_t slot) = 0;
  // The receiver got a packet of kind kData, kTrimmed or kOpen.
  virtual void receive(const Packet& packet) = 0;
  // The sender got an answer of the receiver.
  virtual void answer(const Packet& packet) = 0;
  // A data packet was lost. Transports must not use information that a real sender lacks.
  virtual void lost(const Packet& packet) {}
  // Called for every active flow a few times per timeout, while its route is intact.
  virtual void checkTimeout(uint32_t slot) {}
  // All senders were held until now, which must not count towards timeouts.
  virtual void resume(uint32_t slot) {}
  virtual bool hasTimeouts() const { return true; }
  // The slot is free.
  virtual void end(uint32_t slot) {}
  // The pacer of `port` (see PacketNetwork::schedulePacer) is due.
  virtual void pace(uint32_t port) {}
};

// All transports: name and factory function, in its own file. "dcqcn" is "roce" with DCQCN's rate
// control.
// clang-format off: a line each
#define TOPOOPT_TRANSPORTS(entry)                                                   \
  entry("constant", makeConstant) entry("dctcp", makeDctcp) entry("roce", makeRoce) \
      entry("dcqcn", makeRoce) entry("ndp", makeNdp)
// clang-format on

#define TOPOOPT_DECLARE(name, make) \
  std::unique_ptr<Transport> make(PacketNetwork& network, const PacketOptions& options);
TOPOOPT_TRANSPORTS(TOPOOPT_DECLARE)
#undef TOPOOPT_DECLARE

std::vector<std::string> transports();

// Creates the transport in `options`. Throws std::invalid_argument for an unknown name.
std::unique_ptr<Transport> makeTransport(PacketNetwork& network, const PacketOptions& options);

}  // namespace topoopt::packet
