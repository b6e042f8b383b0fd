// How an endpoint keeps within its limits (flow_limits.h), as a source and as a receiver.

#include <algorithm>
#include <utility>

#include "common/errors.h"
#include "transport/endpoint.h"

namespace topoopt {
namespace {

// Flows that are looked at again when there is room for early bytes: each may ask for itself, so it
// is enough that some go on.
constexpr size_t kRetriedFlows = 8;

size_t roomIn(size_t limit, uint64_t used) { return used < limit ? limit - used : 0; }

}  // namespace

// ---- as a source -------------------------------------------------------------------------------

// Payload that the next frame of the flow may have; nothing if it must wait, and then pump() comes
// again by itself.
std::optional<size_t> Endpoint::allowance(const FlowId& id, OutFlow& flow) {
  const OutMessage& message = flow.pending.front();
  const size_t left = message.bytes - message.framed;
  if (message.number < flow.granted) {
    if (!flow.relayed) return left;
    const size_t cost = costOf(std::min<size_t>(left, kRelayedPayloadBytes));
    const bool has_share = !waiting_relayed_.empty() && flow.charged >= limits_.quantum;
    if (!has_share && roomIn(limits_.relayed, out_relayed_) >= cost) return left;
    if (!std::exchange(flow.waits_relayed, true)) waiting_relayed_.push_back(id);
    return std::nullopt;
  }
  const size_t room = std::min(roomIn(limits_.early, out_early_),
                               roomIn(limits_.early_peer, peers_[id.peer].out_early));
  if (flow.asked <= message.number && costOf(left) > room / 2) {
    flow.asked = message.number + 1;
    FrameHeader header;
    header.type = FrameType::kRequestToSend;
    header.channel = id.channel;
    header.stream = id.stream;
    header.message = message.number;
    header.fingerprint = message.fingerprint;
    sendControl(id.peer, header, "");
  }
  if (room >= costOf(std::min<size_t>(left, kLeastPartBytes))) return room - sizeof(FrameHeader);
  if (!std::exchange(flow.waits_early, true)) waiting_early_.push_back(id);
  return std::nullopt;
}

void Endpoint::addEarly(const FlowId& id, OutFlow& flow, size_t cost) {
  flow.early += cost;
  peers_[id.peer].out_early += cost;
  out_early_ += cost;
}

// Counts anew what the flow has in the network. Bytes are early until they are consumed, or until
// the receives of all that has left are known to be posted.
void Endpoint::settle(const FlowId& id, OutFlow& flow) {
  const uint64_t in_flight = flow.sent - flow.acked;
  const uint64_t begun = flow.pending.empty()
                             ? flow.next_number
                             : flow.pending.front().number + (flow.pending.front().framed > 0);
  const uint64_t early = flow.granted >= begun ? 0 : std::min(flow.early, in_flight);
  const uint64_t no_longer = flow.early - early;
  flow.early = early;
  peers_[id.peer].out_early -= no_longer;
  out_early_ -= no_longer;
  const uint64_t charged = flow.relayed ? in_flight - early : 0;
  out_relayed_ += charged - flow.charged;
  flow.charged = charged;
}

// Before a flow is forgotten.
void Endpoint::release(const FlowId& id, OutFlow& flow) {
  flow.acked = flow.sent;
  settle(id, flow);
}

// Pumps flows that wait, in turn, as long as there is room.
void Endpoint::resumeWaiting() {
  for (size_t i = std::min(waiting_early_.size(), kRetriedFlows); i > 0; --i) {
    if (roomIn(limits_.early, out_early_) < costOf(kLeastPartBytes)) break;
    const FlowId id = waiting_early_.front();
    waiting_early_.pop_front();
    const auto flow = out_.find(id);
    if (flow == out_.end() || !std::exchange(flow->second.waits_early, false)) continue;
    pump(id, flow->second);
  }
  for (size_t i = waiting_relayed_.size(); i > 0; --i) {
    if (roomIn(limits_.relayed, out_relayed_) < costOf(kRelayedPayloadBytes)) break;
    const FlowId id = waiting_relayed_.front();
    waiting_relayed_.pop_front();
    const auto flow = out_.find(id);
    if (flow == out_.end() || !std::exchange(flow->second.waits_relayed, false)) continue;
    pump(id, flow->second);
  }
}

void Endpoint::onAck(const FrameHeader& header) {
  const FlowId id = flowOf(header);
  const auto found = out_.find(id);
  if (found == out_.end()) return;
  OutFlow& flow = found->second;
  const bool everything = header.message_bytes == kEverything;
  flow.granted = std::max(flow.granted, everything ? kEverything : header.message);
  flow.acked = std::min(flow.sent, std::max(flow.acked, header.message_bytes));
  settle(id, flow);
  pump(id, flow);
  if (closed_channels_.contains(id.channel) && flow.sent == flow.acked) out_.erase(found);
  if (!waiting_early_.empty() || !waiting_relayed_.empty()) resumeWaiting();
  continueLeaving();
}

// ---- as a receiver -----------------------------------------------------------------------------

// The source asks for the receive of this message, of which it has perhaps sent nothing yet.
void Endpoint::onRequestToSend(const FrameHeader& header) {
  const FlowId id = flowOf(header);
  if (closed_channels_.contains(id.channel)) return acknowledge(id, kEverything, 0);
  InFlow& flow = in_[id];
  flow.requested = std::max(flow.requested, header.message + 1);
  if (flow.base + flow.posted.size() >= flow.requested) return acknowledge(id, flow);
  if (header.stream < kFirstMessageStream) reportIfOver(header);
  bindAnyReceives(id);
}

void Endpoint::consumed(const FlowId& id, InFlow& flow, size_t cost) {
  flow.consumed += cost;
  if (flow.ack_at_once) return acknowledge(id, flow);
  Peer& peer = peers_[id.peer];
  peer.unacked_bytes += cost;
  if (!std::exchange(flow.listed, true)) peer.unacked.push_back(id);
  if (peer.unacked_bytes < limits_.ack) return;
  for (const FlowId& listed : peer.unacked) {
    const auto found = in_.find(listed);
    if (found == in_.end()) continue;
    found->second.listed = false;
    if (found->second.consumed != found->second.acked) acknowledge(listed, found->second);
  }
  peer.unacked.clear();
  peer.unacked_bytes = 0;
}

// What is consumed, and which messages may come without asking.
void Endpoint::acknowledge(const FlowId& id, InFlow& flow) {
  flow.acked = flow.consumed;
  acknowledge(id, flow.consumed, flow.base + flow.posted.size());
}

void Endpoint::acknowledge(const FlowId& id, uint64_t consumed, uint64_t posted) {
  FrameHeader header;
  header.type = FrameType::kAck;
  header.channel = id.channel;
  header.stream = id.stream;
  header.message = posted;
  header.message_bytes = consumed;
  sendControl(id.peer, header, "");
}

// Keeps a frame whose receive is not posted yet. Its source may not have more of them here than the
// limit; twice as much is taken, for what is left of a channel that has failed there. Returns
// whether it is the first of its message.
bool Endpoint::keepEarly(const FlowId& id, InFlow& flow, const FrameHeader& header,
                         PayloadBuffer payload) {
  Peer& peer = peers_[id.peer];
  const size_t cost = costOf(header.payload_bytes);
  if (peer.in_early + cost > 2 * limits_.early_peer) {
    failAll("rank " + std::to_string(id.peer) + " has sent more than " +
                std::to_string(2 * limits_.early_peer) +
                " bytes that no receive was posted for, without asking",
            true);
    return false;
  }
  peer.in_early += cost;
  kept_early_.add(cost);
  Early& early = flow.early[header.message];
  early.message_bytes = header.message_bytes;
  early.fingerprint = header.fingerprint;
  early.cost += cost;
  early.frames.emplace_back(header.offset, std::move(payload));
  return early.frames.size() == 1;
}

void Endpoint::forgetEarly(int source, size_t cost) {
  peers_[source].in_early -= cost;
  kept_early_.remove(cost);
}

size_t Endpoint::rememberedEntries() {
  size_t entries = 0;
  reactor_.run([&] {
    entries = out_.size() + in_.size() + channels_.size() + closed_channels_.size() +
              closed_order_.size() + failures_seen_.size();
  });
  return entries;
}

HeldMemory Endpoint::heldMemory() {
  HeldMemory memory;
  reactor_.run([&] {
    memory.relayed = buffers_.relayed;
    memory.early = kept_early_;
    memory.buffers = buffers_.held;
  });
  return memory;
}

}  // namespace topoopt
