// The options of a packet-level simulation.

#pragma once

#include <cstdint>
#include <string>

namespace topoopt::packet {

// The way back of a receiver's acknowledgements: over the cables of the path reversed, after the
// path's latency without using any bandwidth, or at once.
enum class ReturnPath { kLinks, kLatency, kInstant };

// The use of several routes: each flow takes one of them, chosen at random, or each packet the
// next.
enum class Spread { kEcmp, kSpray };

// Packets take the path of their flow, or at every node, of all links that lead to their target by
// a shortest path (adaptive_routing.h), that with the shortest queue.
enum class PathChoice { kPlanned, kAdaptive };

// In which order flows of one instant begin: drawn from the seed by what they are, so that hosts
// are not in step; by source and target, as if every host went through the others by number; or in
// the order in which they are given.
enum class StartOrder { kDrawn, kNumbered, kGiven };

// Sizes in bytes on the wire, headers included; 0 in a limit: no limit. Sources of the defaults are
// in docs/planning/simulators.md.
struct PacketOptions {
  std::string transport = "constant";  // a name of transports() (transport.h)
  ReturnPath acks = ReturnPath::kLatency;
  int payload_bytes = 8936;  // of a full packet
  int header_bytes = 64;     // of every packet; also the size of all others than data
  bool full_last_packet = false;
  Spread spread = Spread::kSpray;
  PathChoice path_choice = PathChoice::kPlanned;
  // Of the flows of a host, with an adaptive choice of paths: so many send in turn, and the others
  // wait until one of those has sent all; 0: all send.
  int sends_at_once = 0;
  StartOrder start_order = StartOrder::kDrawn;
  // Else acknowledgements and the like wait behind data, in the same queue.
  bool control_first = true;
  uint64_t seed = 0;

  // Buffers: of one output queue in a switch (a node that is no host), in a host that relays.
  int64_t switch_queue_bytes = 0;
  int64_t relay_queue_bytes = 0;

  // Lossless: a node pauses the link over which its buffer was filled.
  bool lossless = false;
  int64_t pause_above_bytes = 200'000;  // waiting that came over one link
  int64_t resume_below_bytes = 180'000;

  // A timeout of the transports that can lose packets.
  double retransmission_timeout_s = 0.01;

  struct DctcpOptions {
    bool handshake = true;  // every flow is a connection of its own
    int initial_window_packets = 10;
    double gain = 1.0 / 16;
    int mark_above_packets = 50;
    // A window goes into the queue of the sender's own first link, where it can be marked; else
    // packets are made when they can leave, and wait nowhere.
    bool queue_at_sender = true;
    // Else only switches mark; packets in a host's queue never are.
    bool mark_in_hosts = true;
    // Marks packets that leave a queue that is too long, so that senders are notified at once, and
    // not those that join it.
    bool mark_on_departure = false;
    // The window of the paper's simulator: the estimate starts at 0, a window lasts for as many
    // acknowledgements as it had packets when it began, and while the estimate is not 0 every one
    // ends with a cut, whether or not something was marked.
    bool cut_every_window = false;
  } dctcp;

  struct RoceOptions {
    int packets_per_ack = 16;
  } roce;

  struct DcqcnOptions {
    int64_t mark_from_bytes = 400'000, mark_all_from_bytes = 1'600'000;
    double mark_probability = 0.2;  // reached at mark_all_from_bytes
    double congestion_interval_s = 50e-6;
    double alpha_interval_s = 55e-6, increase_interval_s = 55e-6;
    int64_t increase_bytes = 10'000'000;
    double gain = 1.0 / 256;
    int recovery_steps = 5;
    double additive_part = 0.001, hyper_part = 0.01, least_part = 0.001;  // of the link's rate
  } dcqcn;

  struct NdpOptions {
    int initial_window_packets = 30;
    int queue_packets = 8;        // of data; what comes on top is trimmed
    int headers_per_packet = 10;  // served before one packet of data gets its turn
  } ndp;

  // Throws std::invalid_argument naming the field that is wrong.
  void validate() const;
};

}  // namespace topoopt::packet
