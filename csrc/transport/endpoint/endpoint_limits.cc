// How an endpoint keeps within its limits (flow_limits.h), as a source and as a receiver, and
// forgets flows that are not used any more.

#include <algorithm>
#include <cstring>
#include <utility>

#include "common/errors.h"
#include "transport/endpoint/endpoint.h"

namespace topoopt {
namespace {

// Flows that are looked at again when there is room for early bytes: each may ask for itself, so it
// is enough that some go on.
constexpr size_t kRetriedFlows = 8;

// Of generations, which may wrap around.
bool isOlder(uint32_t generation, uint32_t other) {
  return static_cast<int32_t>(generation - other) < 0;
}

// Looks without progress before a receiver is reminded: 3, 6, 12, ... up to kMostLooks.
constexpr std::chrono::seconds kLookInterval{1};
constexpr uint32_t kLeastLooks = 3;
constexpr uint32_t kMostLooks = 96;

bool isReminderDue(uint32_t looks) {
  for (uint32_t due = kLeastLooks; due <= kMostLooks; due *= 2) {
    if (looks == due) return true;
  }
  return looks > kMostLooks && looks % kMostLooks == 0;
}

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
    header.generation = flow.generation;
    header.fingerprint = message.fingerprint;
    ++flow.requests;
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
  if (found == out_.end() || found->second.generation != header.generation) return;
  OutFlow& flow = found->second;
  const bool everything = header.message_bytes == kEverything;
  flow.granted = std::max(flow.granted, everything ? kEverything : header.message);
  flow.acked = std::min(flow.sent, std::max(flow.acked, header.message_bytes));
  flow.answered =
      everything ? flow.requests : std::max(flow.answered, static_cast<uint32_t>(header.offset));
  settle(id, flow);
  pump(id, flow);
  if (!closed_channels_.contains(id.channel)) {
    noteIdle(id, flow);
  } else if (flow.sent == flow.acked) {
    out_.erase(found);
  }
  if (!waiting_early_.empty() || !waiting_relayed_.empty()) resumeWaiting();
  end_.continueLeaving();
}

// A flow with waiting messages goes on when a kAck arrives: its receiver has consumed bytes or
// posted receives. No frame is lost with a cable (cable_ledger.h). If one is lost all the same,
// this makes the receiver send its last kAck again. If the receiver is only late, nothing changes.
void Endpoint::remindReceivers() {
  const auto now = Reactor::Clock::now();
  if (now < next_reminder_) return;
  next_reminder_ = now + kLookInterval;
  for (auto& [id, flow] : out_) {
    if (flow.pending.empty()) {
      flow.looks_without_progress = 0;
      continue;
    }
    const uint64_t progress = flow.sent + flow.acked + flow.granted;  // none of them goes back
    if (std::exchange(flow.progress_seen, progress) != progress) flow.looks_without_progress = 0;
    if (!isReminderDue(++flow.looks_without_progress)) continue;
    FrameHeader header;
    header.type = FrameType::kAckRequest;
    header.channel = id.channel;
    header.stream = id.stream;
    header.generation = flow.generation;
    header.message = flow.asked;
    header.message_bytes = flow.acked;
    header.offset = 1;
    sendControl(id.peer, header, "");
  }
}

// ---- as a receiver -----------------------------------------------------------------------------

// The source asks for the receive of this message, of which it has perhaps sent nothing yet.
void Endpoint::onRequestToSend(const FrameHeader& header) {
  const FlowId id = flowOf(header);
  if (closed_channels_.contains(id.channel)) return acknowledgeEverything(id, header.generation);
  InFlow& flow = in_[id];
  if (!isCurrent(flow, header.generation)) return;
  ++flow.requests;
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
  FrameHeader header;
  header.type = FrameType::kAck;
  header.channel = id.channel;
  header.stream = id.stream;
  header.message = flow.base + flow.posted.size();
  header.message_bytes = flow.consumed;
  header.offset = flow.requests;
  header.generation = flow.generation;
  sendControl(id.peer, header, "");
}

// Of a channel that is closed here.
void Endpoint::acknowledgeEverything(const FlowId& id, uint32_t generation) {
  FrameHeader header;
  header.type = FrameType::kAck;
  header.channel = id.channel;
  header.stream = id.stream;
  header.message_bytes = kEverything;
  header.generation = generation;
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
    end_.failAll("rank " + std::to_string(id.peer) + " has sent more than " +
                 std::to_string(2 * limits_.early_peer) +
                 " bytes that no receive was posted for, without asking");
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

// ---- flows that are forgotten ------------------------------------------------------------------
//
// Tags come and go, and so do their flows: each end remembers those of which something is on its
// way, and a limited number of others. The sender decides: it forgets flows of which nothing is on
// its way in either direction, notifies the receiver, and begins anew at message 0 when one of them
// is used again. The two ends need not do so at the same time, for the frames of a flow say which
// one they mean: they carry the number of times that the sender had forgotten flows to this
// receiver when the flow began, its generation. A receiver that finds a newer one than it knows has
// everything of the older one.

void Endpoint::noteIdle(const FlowId& id, OutFlow& flow) {
  if (id.stream < kFirstMessageStream || flow.listed || !flow.idle()) return;
  flow.listed = true;
  std::vector<FlowId>& idle = peers_[id.peer].idle;
  idle.push_back(id);
  if (idle.size() >= kForgottenFlows) forgetIdle(id.peer);
}

void Endpoint::forgetIdle(int peer) {
  std::string names;
  for (const FlowId& id : std::exchange(peers_[peer].idle, {})) {
    const auto found = out_.find(id);
    if (found == out_.end()) continue;
    found->second.listed = false;
    if (!found->second.idle()) continue;
    out_.erase(found);
    const FlowName name{id.stream, id.channel};
    names.append(reinterpret_cast<const char*>(&name), sizeof name);
  }
  FrameHeader header;
  header.type = FrameType::kForget;
  header.generation = ++peers_[peer].generation;
  sendControl(peer, header, names);
}

void Endpoint::onForget(const FrameHeader& header, const PayloadBuffer& payload) {
  for (size_t at = 0; at + sizeof(FlowName) <= payload.size(); at += sizeof(FlowName)) {
    FlowName name;
    std::memcpy(&name, payload.data() + at, sizeof name);
    const auto found = in_.find({header.source, name.channel, name.stream});
    if (found == in_.end()) continue;
    InFlow& flow = found->second;
    if (!flow.begun || !isOlder(flow.generation, header.generation)) continue;
    if (flow.posted.empty() && flow.early.empty()) {
      in_.erase(found);
    } else {
      beginAnew(flow);
    }
  }
}

// All messages of its generation are here and taken; the receives that are posted are for the next
// one.
void Endpoint::beginAnew(InFlow& flow) {
  flow.base = 0;
  flow.consumed = flow.acked = 0;
  flow.requested = 0;
  flow.requests = 0;
  flow.begun = false;
}

// Whether a frame of this generation is about the flow as it is, or begins it; else it is late.
bool Endpoint::isCurrent(InFlow& flow, uint32_t generation) {
  if (flow.begun && generation == flow.generation) return true;
  if (flow.begun && isOlder(generation, flow.generation)) return false;
  if (flow.begun) beginAnew(flow);
  flow.begun = true;
  flow.generation = generation;
  return true;
}

size_t Endpoint::rememberedEntries() {
  size_t entries = 0;
  reactor_.run([&] {
    entries = out_.size() + in_.size() + channels_.size() + closed_channels_.size() +
              closed_order_.size() + end_.rememberedEntries() + early_calls_.size() +
              waiting_early_.size() + waiting_relayed_.size();
    for (const Peer& peer : peers_) entries += peer.idle.size();
  });
  return entries;
}

HeldMemory Endpoint::heldMemory() {
  HeldMemory memory;
  reactor_.run([&] {
    memory.relayed = buffers_.relayed();
    memory.early = kept_early_;
    memory.buffers = buffers_.held;
  });
  return memory;
}

}  // namespace topoopt
