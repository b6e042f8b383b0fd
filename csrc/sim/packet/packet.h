// Packets and the unit of time of the packet level.

#pragma once

#include <cmath>
#include <cstdint>
#include <limits>

namespace topoopt::packet {

using Picoseconds = int64_t;

constexpr Picoseconds kNever = std::numeric_limits<int64_t>::max();
constexpr double kPicosecondsPerSecond = 1e12;

// Exact for times below 2^53 ps (2.5 hours).
inline Picoseconds toPicoseconds(double seconds) {
  return std::llround(seconds * kPicosecondsPerSecond);
}
inline double toSeconds(Picoseconds time) {
  return static_cast<double>(time) / kPicosecondsPerSecond;
}

// Data uses a port's data class, all other kinds its control class.
enum class PacketKind : uint8_t {
  kData,
  kTrimmed,  // data without its payload
  kOpen,     // requests a connection; kOpened is the answer
  kOpened,
  kAck,
  kNack,
  kCongestion,  // DCQCN's notification packet
  kPull,
  kPause,  // of a link, by its end node
  kResume,
};

constexpr uint32_t kNoLink = std::numeric_limits<uint32_t>::max();
constexpr uint32_t kOwnHost = kNoLink - 1;  // in a queue of its source host

struct Packet {
  uint32_t flow;   // slot of the flow
  uint32_t seq;    // index in its flow
  uint32_t value;  // content of an acknowledgement
  uint32_t hop;    // index of the next link in the table of hops; adaptive routing: target
  uint32_t size_bytes;
  uint32_t link;  // current or last link; kOwnHost; or kNoLink: none
  PacketKind kind;
  bool marked;               // by a congested queue (ECN)
  uint8_t channel = 0;       // of `link`
  uint8_t next_channel = 0;  // of the next link
  int32_t detour = -1;       // next group to visit; -1: none
};

}  // namespace topoopt::packet
