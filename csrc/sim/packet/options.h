// The options of a packet-level simulation.

#pragma once

#include <cstdint>
#include <string>

namespace topoopt::packet {

// The return path of acknowledgements: over the reversed path's cables, after the path's latency
// without using bandwidth, or instantly.
enum class ReturnPath { kLinks, kLatency, kInstant };

// The use of several routes: each flow takes a random one, or packets alternate.
enum class Spread { kEcmp, kSpray };

// Packets use their flow's path, or at every node the shortest queue among links on shortest paths
// (adaptive_routing.h).
enum class PathChoice { kPlanned, kAdaptive };

// The order of flows that begin at the same time: at random by their properties, to avoid
// synchronised hosts; by source and target, as if hosts iterated over the others; or as given.
enum class StartOrder { kDrawn, kNumbered, kGiven };

// Sizes are in bytes on the wire with headers; a limit of 0 means none. See
// docs/planning/simulators.md for the sources of defaults.
struct PacketOptions {
  std::string transport = "constant";  // a name in transports() (transport.h)
  ReturnPath acks = ReturnPath::kLatency;
  int payload_bytes = 8936;  // per full packet
  int header_bytes = 64;     // per packet; also the size of control packets
  bool full_last_packet = false;
  Spread spread = Spread::kSpray;
  PathChoice path_choice = PathChoice::kPlanned;
  // With an adaptive choice of paths: the number of a host's flows that send in turn; the others
  // wait until one has finished. 0: all send.
  int sends_at_once = 0;
  StartOrder start_order = StartOrder::kDrawn;
  // Otherwise, control packets share the data queue.
  bool control_first = true;
  uint64_t seed = 0;

  // Buffers: per output queue of a switch (a node that is no host), and of a relaying host.
  int64_t switch_queue_bytes = 0;
  int64_t relay_queue_bytes = 0;

  // Lossless: a node pauses the link that filled its buffer.
  bool lossless = false;
  int64_t pause_above_bytes = 200'000;  // queued bytes from one link
  int64_t resume_below_bytes = 180'000;

  // For transports that can lose packets.
  double retransmission_timeout_s = 0.01;

  struct DctcpOptions {
    bool handshake = true;  // each flow is a connection
    int initial_window_packets = 10;
    double gain = 1.0 / 16;
    int mark_above_packets = 50;
    // A window is queued at the sender's first link, where it can be marked; otherwise packets are
    // created when they can leave.
    bool queue_at_sender = true;
    // Otherwise only switches mark packets.
    bool mark_in_hosts = true;
    // Marks packets that leave an overlong queue instead of those that join it, to notify senders
    // sooner.
    bool mark_on_departure = false;
    // The window of the paper's simulator: the estimate starts at 0, and a window lasts for as many
    // acknowledgements as its initial packets. While the estimate is not 0, every window ends with
    // a cut, even without marks.
    bool cut_every_window = false;
  } dctcp;

  struct RoceOptions {
    int packets_per_ack = 16;
  } roce;

  struct DcqcnOptions {
    int64_t mark_from_bytes = 400'000, mark_all_from_bytes = 1'600'000;
    double mark_probability = 0.2;  // at mark_all_from_bytes
    double congestion_interval_s = 50e-6;
    double alpha_interval_s = 55e-6, increase_interval_s = 55e-6;
    int64_t increase_bytes = 10'000'000;
    double gain = 1.0 / 256;
    int recovery_steps = 5;
    // Fractions of the link's rate.
    double additive_part = 0.001, hyper_part = 0.01, least_part = 0.001;
  } dcqcn;

  struct NdpOptions {
    int initial_window_packets = 30;
    int queue_packets = 8;        // of data; further packets are trimmed
    int headers_per_packet = 10;  // headers served per data packet
  } ndp;

  // Throws std::invalid_argument naming the invalid field.
  void validate() const;
};

}  // namespace topoopt::packet
