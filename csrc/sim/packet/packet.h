// The packets of a packet-level network, and its unit of time.

#pragma once

#include <cmath>
#include <cstdint>
#include <limits>

namespace topoopt::packet {

using Picoseconds = int64_t;

constexpr Picoseconds kNever = std::numeric_limits<int64_t>::max();
constexpr double kPicosecondsPerSecond = 1e12;

// Exact there and back for times below 2^53 ps (2.5 hours).
inline Picoseconds toPicoseconds(double seconds) {
  return std::llround(seconds * kPicosecondsPerSecond);
}
inline double toSeconds(Picoseconds time) {
  return static_cast<double>(time) / kPicosecondsPerSecond;
}

// Data waits in the data class of a port, everything else in its control class.
enum class PacketKind : uint8_t {
  kData,
  kTrimmed,  // data that has lost its payload in a full queue
  kOpen,     // asks for a connection; kOpened is the answer
  kOpened,
  kAck,
  kNack,
  kCongestion,  // DCQCN's notification packet
  kPull,
  kPause,  // of a link, by the node at its end
  kResume,
};

constexpr uint32_t kNoLink = std::numeric_limits<uint32_t>::max();
constexpr uint32_t kOwnHost = kNoLink - 1;  // waits in a queue of the host where it was made

struct Packet {
  uint32_t flow;   // slot of the flow
  uint32_t seq;    // number of the packet in its flow
  uint32_t value;  // what an acknowledgement has to say
  uint32_t hop;    // index of the next link in the table of hops; with adaptive routing the target
  uint32_t size_bytes;
  uint32_t link;  // that it crosses or has crossed last, or kOwnHost, or kNoLink: none at all
  PacketKind kind;
  bool marked;               // by a congested queue (ECN)
  uint8_t channel = 0;       // of `link`
  uint8_t next_channel = 0;  // of the link for which it waits
  int32_t detour = -1;       // the group that it is on the way to first; -1: none
};

}  // namespace topoopt::packet
