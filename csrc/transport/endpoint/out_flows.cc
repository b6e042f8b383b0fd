#include "transport/endpoint/out_flows.h"

#include <algorithm>
#include <iterator>
#include <string>
#include <utility>

namespace topoopt {
namespace {

// Flows that are looked at again when there is room for early bytes: each may ask for itself, so it
// is enough that some go on.
constexpr size_t kRetriedFlows = 8;

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

FrameHeader headerOf(FrameType type, const FlowId& id) {
  FrameHeader header;
  header.type = type;
  header.channel = id.channel;
  header.stream = id.stream;
  return header;
}

}  // namespace

OutFlows::OutFlows(int rank, int size, size_t window_bytes, const FlowLimits& limits,
                   Routes& routes)
    : rank_(rank),
      window_bytes_(window_bytes),
      limits_(limits),
      routes_(routes),
      receivers_(static_cast<size_t>(size)) {}

// ---- sending -----------------------------------------------------------------------------------

void OutFlows::send(const FlowId& id, Routes::Ways& ways, OutgoingMessage message) {
  const auto [entry, begins] = flows_.try_emplace(id);
  Flow& flow = entry->second;
  if (begins) flow.generation = receivers_[id.peer].generation;
  flow.relayed = ways.relayed() || (message.ways && message.ways->relayed());
  flow.pending.push_back({std::move(message), flow.next_number++});
  pump(id, flow, ways);
}

void OutFlows::hurry(uint32_t channel) {
  for (const auto& [id, flow] : flows_) {
    if (id.channel != channel) continue;
    for (const Pending& message : flow.pending) message.progress->prompt = true;
  }
}

void OutFlows::pump(const FlowId& id, Flow& flow) {
  if (!flow.pending.empty()) pump(id, flow, *routes_.waysTo(id.peer));
}

void OutFlows::pump(const FlowId& id, Flow& flow, Routes::Ways& ways) {
  while (!flow.pending.empty() && flow.sent - flow.acked < window_bytes_) {
    const std::optional<size_t> allowed = allowance(id, flow);
    if (!allowed) return;
    Pending& message = flow.pending.front();
    const size_t left = message.bytes - message.framed;
    Routes::Ways& chosen = message.ways && routes_.intact() ? *message.ways : ways;
    const size_t route = chosen.next();
    const size_t payload = std::min({left, chosen.framePayload(message.bytes, route), *allowed});
    chosen.charge(route, payload);
    const Routes::Hop hop = chosen.hops()[route];  // a copy: the message may be the last user
    OutFrame frame;
    frame.header.source = static_cast<uint16_t>(rank_);
    frame.header.target = static_cast<uint16_t>(id.peer);
    frame.header.channel = id.channel;
    frame.header.stream = id.stream;
    frame.header.route = chosen.name(route);
    frame.header.iteration = message.iteration;
    frame.header.message = message.number;
    frame.header.message_bytes = message.bytes;
    frame.header.offset = message.framed;
    frame.header.payload_bytes = static_cast<uint32_t>(payload);
    frame.header.generation = flow.generation;
    frame.header.fingerprint = message.fingerprint;
    frame.payload = static_cast<const std::byte*>(message.data) + message.framed;
    frame.message = message.progress;
    message.framed += payload;
    flow.sent += costOf(payload);
    if (message.number >= flow.granted) addEarly(id, flow, costOf(payload));
    if (message.framed == message.bytes) flow.pending.pop_front();
    settle(id, flow);
    routes_.send(hop, std::move(frame));
  }
}

// ---- windows -----------------------------------------------------------------------------------

// Payload that the next frame of the flow may have; nothing if it must wait, and then pump() comes
// again by itself.
std::optional<size_t> OutFlows::allowance(const FlowId& id, Flow& flow) {
  const Pending& message = flow.pending.front();
  const size_t left = message.bytes - message.framed;
  if (message.number < flow.granted) {
    if (!flow.relayed) return left;
    const size_t cost = costOf(std::min<size_t>(left, kRelayedPayloadBytes));
    const bool has_share = !waiting_relayed_.empty() && flow.charged >= limits_.quantum;
    if (!has_share && roomIn(limits_.relayed, relayed_) >= cost) return left;
    if (!std::exchange(flow.waits_relayed, true)) waiting_relayed_.push_back(id);
    return std::nullopt;
  }
  const size_t room = std::min(roomIn(limits_.early, early_),
                               roomIn(limits_.early_peer, receivers_[id.peer].early));
  if (flow.requested <= message.number && costOf(left) > room / 2)
    requestReceive(id, flow, message);
  if (room >= costOf(std::min<size_t>(left, kLeastPartBytes))) return room - sizeof(FrameHeader);
  if (!std::exchange(flow.waits_early, true)) waiting_early_.push_back(id);
  return std::nullopt;
}

void OutFlows::requestReceive(const FlowId& id, Flow& flow, const Pending& message) {
  flow.requested = message.number + 1;
  FrameHeader header = headerOf(FrameType::kRequestToSend, id);
  header.message = message.number;
  header.generation = flow.generation;
  header.fingerprint = message.fingerprint;
  ++flow.requests;
  routes_.sendControl(id.peer, header, "");
}

void OutFlows::addEarly(const FlowId& id, Flow& flow, size_t cost) {
  flow.early += cost;
  receivers_[id.peer].early += cost;
  early_ += cost;
}

// Counts anew what the flow has in the network. Bytes are early until they are consumed, or until
// the receives of all that has left are known to be posted.
void OutFlows::settle(const FlowId& id, Flow& flow) {
  const uint64_t in_flight = flow.sent - flow.acked;
  const uint64_t begun = flow.pending.empty()
                             ? flow.next_number
                             : flow.pending.front().number + (flow.pending.front().framed > 0);
  const uint64_t early = flow.granted >= begun ? 0 : std::min(flow.early, in_flight);
  const uint64_t no_longer = flow.early - early;
  flow.early = early;
  receivers_[id.peer].early -= no_longer;
  early_ -= no_longer;
  const uint64_t charged = flow.relayed ? in_flight - early : 0;
  relayed_ += charged - flow.charged;
  flow.charged = charged;
}

// Before a flow is forgotten.
void OutFlows::release(const FlowId& id, Flow& flow) {
  flow.acked = flow.sent;
  settle(id, flow);
}

// Pumps flows that wait, in turn, as long as there is room.
void OutFlows::resumeWaiting() {
  for (size_t i = std::min(waiting_early_.size(), kRetriedFlows); i > 0; --i) {
    if (roomIn(limits_.early, early_) < costOf(kLeastPartBytes)) break;
    const FlowId id = waiting_early_.front();
    waiting_early_.pop_front();
    const auto flow = flows_.find(id);
    if (flow == flows_.end() || !std::exchange(flow->second.waits_early, false)) continue;
    pump(id, flow->second);
  }
  for (size_t i = waiting_relayed_.size(); i > 0; --i) {
    if (roomIn(limits_.relayed, relayed_) < costOf(kRelayedPayloadBytes)) break;
    const FlowId id = waiting_relayed_.front();
    waiting_relayed_.pop_front();
    const auto flow = flows_.find(id);
    if (flow == flows_.end() || !std::exchange(flow->second.waits_relayed, false)) continue;
    pump(id, flow->second);
  }
}

// ---- acknowledgements --------------------------------------------------------------------------

void OutFlows::onAck(const FrameHeader& header, bool closed) {
  const FlowId id{header.source, header.channel, header.stream};
  const auto found = flows_.find(id);
  if (found == flows_.end() || found->second.generation != header.generation) return;
  Flow& flow = found->second;
  const bool everything = header.message_bytes == kEverything;
  flow.granted = std::max(flow.granted, everything ? kEverything : header.message);
  flow.acked = std::min(flow.sent, std::max(flow.acked, header.message_bytes));
  flow.answered =
      everything ? flow.requests : std::max(flow.answered, static_cast<uint32_t>(header.offset));
  settle(id, flow);
  pump(id, flow);
  if (!closed) {
    noteIdle(id, flow);
  } else if (flow.sent == flow.acked) {
    flows_.erase(found);
  }
  if (!waiting_early_.empty() || !waiting_relayed_.empty()) resumeWaiting();
}

void OutFlows::onDropped(const FrameHeader& header) {
  const auto flow = flows_.find({header.target, header.channel, header.stream});
  if (flow != flows_.end()) flow->second.sent -= costOf(header.payload_bytes);
}

void OutFlows::remindReceivers() {
  const auto now = std::chrono::steady_clock::now();
  if (now < next_reminder_) return;
  next_reminder_ = now + kLookInterval;
  for (auto& [id, flow] : flows_) {
    if (flow.pending.empty()) {
      flow.looks_without_progress = 0;
      continue;
    }
    const uint64_t progress = flow.sent + flow.acked + flow.granted;  // none of them goes back
    if (std::exchange(flow.progress_seen, progress) != progress) flow.looks_without_progress = 0;
    if (!isReminderDue(++flow.looks_without_progress)) continue;
    FrameHeader header = headerOf(FrameType::kAckRequest, id);
    header.generation = flow.generation;
    header.message = flow.requested;
    header.message_bytes = flow.acked;
    header.offset = 1;
    routes_.sendControl(id.peer, header, "");
  }
}

void OutFlows::requestAcknowledgements(const JobStatus& status) {
  for (const auto& [id, flow] : flows_) {
    if (flow.sent == flow.acked || status.hasLeft(id.peer)) continue;
    routes_.sendControl(id.peer, headerOf(FrameType::kAckRequest, id), "");
  }
}

bool OutFlows::allConsumed() const {
  return std::all_of(flows_.begin(), flows_.end(), [](const auto& entry) {
    return entry.second.pending.empty() && entry.second.sent == entry.second.acked;
  });
}

// ---- flows that end ----------------------------------------------------------------------------

void OutFlows::closeChannel(uint32_t channel) {
  for (auto entry = flows_.begin(); entry != flows_.end();) {
    auto& [id, flow] = *entry;
    if (id.channel == channel) {
      flow.pending.clear();
      settle(id, flow);
    }
    const bool over = id.channel == channel && flow.sent == flow.acked;
    entry = over ? flows_.erase(entry) : std::next(entry);
  }
  resumeWaiting();
}

void OutFlows::failChannel(uint32_t channel) {
  for (auto& [id, flow] : flows_) {
    if (id.channel == channel) release(id, flow);
  }
  std::erase_if(flows_, [&](const auto& entry) { return entry.first.channel == channel; });
  resumeWaiting();
}

std::set<uint32_t> OutFlows::giveUp(int rank) {
  std::set<uint32_t> waiting;
  for (auto& [id, flow] : flows_) {
    if (id.peer != rank) continue;
    release(id, flow);
    if (!flow.pending.empty()) waiting.insert(id.channel);
  }
  return waiting;
}

void OutFlows::noteIdle(const FlowId& id, Flow& flow) {
  if (id.stream < kFirstMessageStream || flow.listed || !flow.idle()) return;
  flow.listed = true;
  std::vector<FlowId>& idle = receivers_[id.peer].idle;
  idle.push_back(id);
  if (idle.size() >= kForgottenFlows) forgetIdle(id.peer);
}

void OutFlows::forgetIdle(int peer) {
  std::string names;
  for (const FlowId& id : std::exchange(receivers_[peer].idle, {})) {
    const auto found = flows_.find(id);
    if (found == flows_.end()) continue;
    found->second.listed = false;
    if (!found->second.idle()) continue;
    flows_.erase(found);
    const FlowName name{id.stream, id.channel};
    names.append(reinterpret_cast<const char*>(&name), sizeof name);
  }
  FrameHeader header;
  header.type = FrameType::kForget;
  header.generation = ++receivers_[peer].generation;
  routes_.sendControl(peer, header, names);
}

size_t OutFlows::rememberedEntries() const {
  size_t entries = flows_.size() + waiting_early_.size() + waiting_relayed_.size();
  for (const Receiver& receiver : receivers_) entries += receiver.idle.size();
  return entries;
}

}  // namespace topoopt
