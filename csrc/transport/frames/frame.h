// A frame on a link: a fixed header, then payload. Numbers are in host order; the hello of a link
// checks that both ends share it.
//
// A message is the data of one send. It travels as one or more data frames, perhaps over several
// routes, and each frame has the offset of its payload. A flow is the sequence of messages from one
// rank to another on one channel (process group) and stream (ring or tag). The k-th message of a
// flow matches its k-th receive.

#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

namespace topoopt {

enum class FrameType : uint8_t {
  kData = 1,
  // message_bytes: consumed bytes of the flow; message: number of posted receives; offset: number
  // of kRequestToSend received
  kAck = 2,
  // The sender requests prompt acknowledgements from now on. With an offset, it is stalled and
  // requests one kAck now (OutFlows::remindReceivers). message: number of its requested receives;
  // message_bytes: consumed bytes that it knows of
  kAckRequest = 3,
  kLeave = 4,      // flooded: rank `source` will start nothing new
  kFailure = 5,    // flooded: rank `source` has failed; payload: the reason
  kHeartbeat = 6,  // to the neighbour, if the link was idle
  // `stream`, `message`, `offset` and `message_bytes` hold: the cable, the generation of its
  // connection (from 1), the frames received in that generation, and those in the one before.
  kLinkHello = 7,   // first frame of a replacement connection
  kLinkLost = 8,    // to the rank at the other end, over other links
  kCableState = 9,  // flooded: cable `stream` at the end of rank `source`, see CableReport
  // flooded: cable `stream` at the end of rank `source`, see CableSpeed; offset: millionths
  kCableSpeed = 10,
  // Between members of a group, for its channel: see ring_agreement.h.
  kRings = 11,
  kRingsAnswer = 12,
  kRingsStart = 13,
  kSizes = 14,  // see size_exchange.h
  // The sender waits until the receive of `message` is posted; a kAck reports it.
  kRequestToSend = 16,
  // The sender has removed the flows listed in the payload (FlowName) that are older than
  // `generation`: all of their data is consumed.
  kForget = 17,
  // Between members of a group, on its channel (see ChannelEvents::control).
  kCall = 24,          // call number `message` of `source`
  kStateRequest = 25,  // `source` requests the group state of `target`
  kState = 26,         // the answer as text; message: number of collectives called
  kLook = 27,          // news in shared memory (local_messages.h)
};

// Every rank forwards these over all its links and drops duplicates.
inline bool isFlooded(FrameType type) {
  return type == FrameType::kLeave || type == FrameType::kFailure ||
         type == FrameType::kCableState || type == FrameType::kCableSpeed;
}
// Between the ends of a link, about the link itself.
inline bool isForOneLink(FrameType type) {
  return type == FrameType::kHeartbeat || type == FrameType::kLinkHello;
}

inline constexpr uint16_t kFrameMagic = 0x70f0;

struct FrameHeader {
  uint16_t magic = kFrameMagic;
  FrameType type = FrameType::kData;
  uint8_t detour = 0;   // not 0: ignore `route` and use the shortest remaining path
  uint16_t source = 0;  // rank that sent the message
  uint16_t target = 0;  // rank that receives it
  uint32_t channel = 0;
  uint16_t route = 0;      // see RouteName
  uint16_t iteration = 0;  // low 16 bits of the source's iteration
  uint64_t stream = 0;
  uint64_t message = 0;  // number of the message in its flow
  uint64_t message_bytes = 0;
  uint64_t offset = 0;  // of this payload in the message
  uint32_t payload_bytes = 0;
  uint32_t generation = 0;   // of the flow: see out_flows.h
  uint64_t fingerprint = 0;  // of the operation; both ends must agree
};
static_assert(sizeof(FrameHeader) == 64, "the header goes to the wire as it lies in memory");

// FrameHeader::route. A route of the plan is its index among those of the pair. Messages that are
// divided among further routes (routes.h) also name their size, in eighths of the mean size of an
// all-to-all: links give large messages more turns, so that all end at the same time.
struct RouteName {
  static constexpr uint16_t kDivided = 0x8000;
  static constexpr size_t kMostPlanned = kDivided;
  static constexpr size_t kMostChoices = 256;
  static constexpr size_t kMeanSize = 8;
  static constexpr size_t kMostSize = 127;

  static uint16_t ofChoice(size_t choice, size_t size) {
    return static_cast<uint16_t>(kDivided | size << 8 | choice);
  }
  static bool isChoice(uint16_t route) { return (route & kDivided) != 0; }
  static size_t choiceOf(uint16_t route) { return route % kMostChoices; }
  static size_t sizeOf(uint16_t route) {
    return isChoice(route) ? (route & ~kDivided) >> 8 : kMeanSize;
  }
};

// Payload limit. Longer frames cost less between neighbours but delay others, so only fast links
// use the longest. Relayed frames are shorter, because a relay forwards only complete frames.
inline constexpr uint32_t kMaxPayloadBytes = 1 << 20;
inline constexpr uint32_t kNeighbourPayloadBytes = 256 << 10;
inline constexpr uint32_t kRelayedPayloadBytes = 64 << 10;
inline constexpr uint32_t kLeastPartBytes = 4 << 10;  // of a message split over parallel links

// Smaller streams are lanes of collectives; from here on they are tags of point-to-point messages.
inline constexpr uint64_t kFirstMessageStream = uint64_t{1} << 32;

// Fingerprint of a lane's message: the low 32 bits of the collective's number, and a hash of the
// arguments that all members share.
inline uint64_t laneFingerprint(uint64_t number, uint32_t hash) { return number << 32 | hash; }
inline uint32_t callNumberOf(uint64_t fingerprint) {
  return static_cast<uint32_t>(fingerprint >> 32);
}

// First channel for chunks over moved circuits; channels of groups are lower.
inline constexpr uint32_t kFirstCircuitChannel = 0x80000000;
// First channel for measurements. Counters exclude them, because they count the job's own data.
inline constexpr uint32_t kFirstProbeChannel = 0xfffffff0;

inline bool countsAsPayload(const FrameHeader& header) {
  return header.type == FrameType::kData && header.channel < kFirstProbeChannel;
}

// A flow from the source of a kForget to its target.
struct FlowName {
  uint64_t stream = 0;
  uint32_t channel = 0;
  uint32_t reserved = 0;
};
static_assert(sizeof(FlowName) == 16, "goes to the wire as it lies in memory");

// In a kAck: all frames of the flow are consumed, also those in flight.
inline constexpr uint64_t kEverything = UINT64_MAX;

// A frame's size for limits, with the header, so that empty messages are limited too.
inline size_t costOf(size_t payload_bytes) { return payload_bytes + sizeof(FrameHeader); }

// One end's name for a flow: the other rank, the channel and the stream.
struct FlowId {
  int peer = -1;
  uint32_t channel = 0;
  uint64_t stream = 0;

  bool operator==(const FlowId&) const = default;
};

// A flow as a relay identifies it, for fairness on a link.
struct FlowKey {
  uint16_t source = 0;
  uint16_t target = 0;
  uint32_t channel = 0;
  uint64_t stream = 0;

  bool operator==(const FlowKey&) const = default;

  static FlowKey of(const FrameHeader& header) {
    return {header.source, header.target, header.channel, header.stream};
  }
};

inline size_t mixHash(size_t seed, uint64_t value) {
  return seed ^ (std::hash<uint64_t>{}(value) + 0x9e3779b97f4a7c15ull + (seed << 6) + (seed >> 2));
}

struct FlowHash {
  size_t operator()(const FlowId& flow) const {
    return mixHash(mixHash(flow.channel, flow.stream), static_cast<uint64_t>(flow.peer));
  }
  size_t operator()(const FlowKey& flow) const {
    return mixHash(mixHash(flow.channel, flow.stream),
                   (static_cast<uint64_t>(flow.source) << 16) | flow.target);
  }
};

}  // namespace topoopt
