// What travels on a link: a fixed header, then payload. Numbers are in host order; all machines of
// a cluster must share it, which the hello checks when a link is opened.
//
// A message is what one send hands over; it travels as one or more data frames, perhaps over
// several routes, and each frame says where its bytes belong. A flow is the sequence of messages
// from one rank to another on one channel (process group) and stream (ring or tag); the k-th
// message of a flow goes to the k-th receive.

#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

namespace topoopt {

enum class FrameType : uint8_t {
  kData = 1,
  // message_bytes: bytes of the flow consumed so far; message: so many of its receives are posted;
  // offset: so many kRequestToSend have come
  kAck = 2,
  // The sender wants every byte acknowledged at once from now on. With an offset, it makes no
  // progress and wants one kAck now (OutFlows::remindReceivers). message: the number of messages
  // that it has requested receives for; message_bytes: the consumed bytes that it knows of
  kAckRequest = 3,
  kLeave = 4,      // flooded: rank `source` will start nothing new
  kFailure = 5,    // flooded: rank `source` has failed; the payload says why
  kHeartbeat = 6,  // to the neighbour, when there was nothing else to send
  // The four numbers of these are in `stream`, `message`, `offset` and `message_bytes`: a cable, a
  // generation of its connection (1 is the first one), the frames received in that generation, and
  // in the one before.
  kLinkHello = 7,   // the first frame of a connection that takes the place of a lost one
  kLinkLost = 8,    // to the rank at the other end, over whatever links are left
  kCableState = 9,  // flooded: cable `stream` at the end of rank `source`, see CableReport
  // flooded: cable `stream` at the end of rank `source`, see CableSpeed; offset: millionths
  kCableSpeed = 10,
  // Between members of a group, for its channel: see ring_agreement.h.
  kRings = 11,
  kRingsAnswer = 12,
  kRingsStart = 13,
  // The sender waits until the receive of `message` is posted; a kAck says so.
  kRequestToSend = 16,
  // The sender remembers nothing of the flows that the payload lists (FlowName), if they are older
  // than `generation`: all that it has sent on them is consumed.
  kForget = 17,
  // Between members of a group, for its channel (see ChannelEvents::control).
  kCall = 24,      // what `source` has called as its collective number `message`
  kStateAsk = 25,  // `source` asks what the group of `target` is in
  kState = 26,     // the answer, as text; message: collectives called so far
  kLook = 27,      // there is news in the memory that the two share (local_messages.h)
};

// Passed on by every rank over all its links, and recognised when it comes again.
inline bool isFlooded(FrameType type) {
  return type == FrameType::kLeave || type == FrameType::kFailure ||
         type == FrameType::kCableState || type == FrameType::kCableSpeed;
}
// From one end of a link to the other, about the link itself.
inline bool isForOneLink(FrameType type) {
  return type == FrameType::kHeartbeat || type == FrameType::kLinkHello;
}

inline constexpr uint16_t kFrameMagic = 0x70f0;

struct FrameHeader {
  uint16_t magic = kFrameMagic;
  FrameType type = FrameType::kData;
  uint8_t detour = 0;  // not 0: `route` is given up, every rank takes the shortest way that is left
  uint16_t source = 0;  // rank that sent the message
  uint16_t target = 0;  // rank it is for
  uint32_t channel = 0;
  uint16_t route = 0;      // index among the routes from source to target
  uint16_t iteration = 0;  // of the source when it sent the message, its low 16 bits
  uint64_t stream = 0;
  uint64_t message = 0;  // number of the message in its flow
  uint64_t message_bytes = 0;
  uint64_t offset = 0;  // of this payload in the message
  uint32_t payload_bytes = 0;
  uint32_t generation = 0;   // of the flow: see out_flows.h
  uint64_t fingerprint = 0;  // of the operation; both ends must agree
};
static_assert(sizeof(FrameHeader) == 64, "the header goes to the wire as it lies in memory");

// A frame's payload at most. Between neighbours fewer, longer frames cost less, but what comes
// later waits longer behind one: the longest are for links that carry them in no time. Relayed ones
// are shorter, because a relay passes a frame on only when it has all of it.
inline constexpr uint32_t kMaxPayloadBytes = 1 << 20;
inline constexpr uint32_t kNeighbourPayloadBytes = 256 << 10;
inline constexpr uint32_t kRelayedPayloadBytes = 64 << 10;
inline constexpr uint32_t kLeastPartBytes = 4 << 10;  // of a message over parallel links

// Streams below this are the lanes of collectives, from here on the tags of point-to-point
// messages.
inline constexpr uint64_t kFirstMessageStream = uint64_t{1} << 32;

// The fingerprint of a lane's message: the number of its collective in the order of the group, of
// which the low 32 bits are enough, and a hash of what the members must agree on.
inline uint64_t laneFingerprint(uint64_t number, uint32_t hash) { return number << 32 | hash; }
inline uint32_t callNumberOf(uint64_t fingerprint) {
  return static_cast<uint32_t>(fingerprint >> 32);
}

// Chunks that circuits move for have channels from here on; those of groups are lower.
inline constexpr uint32_t kFirstCircuitChannel = 0x80000000;
// Channels from here on measure the network. What they carry is no payload to the counters, which
// count what a job has sent.
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

// In a kAck: all frames of the flow are consumed, also those that are still on their way.
inline constexpr uint64_t kEverything = UINT64_MAX;

// What a frame counts against the window; headers count, so that empty messages are bounded too.
inline size_t costOf(size_t payload_bytes) { return payload_bytes + sizeof(FrameHeader); }

// One end's name for a flow: the other rank, the channel and the stream.
struct FlowId {
  int peer = -1;
  uint32_t channel = 0;
  uint64_t stream = 0;

  bool operator==(const FlowId&) const = default;
};

// A flow as a relay sees it, to share a link fairly between flows.
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
