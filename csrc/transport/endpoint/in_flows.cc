#include "transport/endpoint/in_flows.h"

#include <algorithm>
#include <cstring>

#include "common/log.h"

namespace topoopt {
namespace {

// Of generations, which may wrap around.
bool isOlder(uint32_t generation, uint32_t other) {
  return static_cast<int32_t>(generation - other) < 0;
}

uint64_t callKey(uint32_t channel, uint32_t number) {
  return static_cast<uint64_t>(channel) << 32 | number;
}

// The flow of a frame for this rank.
FlowId flowOf(const FrameHeader& header) { return {header.source, header.channel, header.stream}; }

std::string describe(int sender, int receiver, const MessageMismatch::Side& sent,
                     const MessageMismatch::Side& expected) {
  const std::string ranks =
      "rank " + std::to_string(sender) + " and rank " + std::to_string(receiver) + " disagree: ";
  if (sent.bytes == expected.bytes) {
    return ranks + "they are in different operations, or give them different arguments";
  }
  return ranks + "one sent " + std::to_string(sent.bytes) + " bytes, the other expects " +
         std::to_string(expected.bytes);
}

}  // namespace

MessageMismatch::MessageMismatch(int sender, int receiver, Side sent, Side expected)
    : MismatchError(describe(sender, receiver, sent, expected)),
      sender(sender),
      sent(sent),
      expected(expected) {}

bool fitsItsMessage(const FrameHeader& header) {
  return header.payload_bytes <= header.message_bytes &&
         header.offset <= header.message_bytes - header.payload_bytes;
}

InFlows::InFlows(int rank, int size, const FlowLimits& limits, const OpenLinks& links,
                 Routes& routes, const JobStatus& status, FailJob fail)
    : rank_(rank),
      limits_(limits),
      links_(links),
      routes_(routes),
      status_(status),
      fail_(std::move(fail)),
      senders_(static_cast<size_t>(size)) {}

// ---- receives ----------------------------------------------------------------------------------

bool InFlows::matches(const FlowId& id, const Posted& posted, size_t message_bytes,
                      uint64_t fingerprint, const Done& done) const {
  if (posted.bytes == message_bytes && posted.fingerprint == fingerprint) return true;
  done(std::make_exception_ptr(MessageMismatch(id.peer, rank_, {message_bytes, fingerprint},
                                               {posted.bytes, posted.fingerprint})));
  return false;
}

void InFlows::post(const FlowId& id, ReceiveBuffer receive) {
  if (status_.failed()) return receive.done(peerLost(status_.failure));
  Posted wanted{std::move(receive)};
  Flow& flow = flows_[id];
  const uint64_t number = flow.base + flow.posted.size();
  const auto early = flow.early.find(number);
  if (early == flow.early.end() && status_.hasLeft(id.peer)) {
    return wanted.done(peerLost(JobStatus::leftText(id.peer)));
  }
  if (early != flow.early.end()) {
    wanted.learnSize(early->second.message_bytes);
    if (!matches(id, wanted, early->second.message_bytes, early->second.fingerprint, wanted.done)) {
      return;
    }
  }
  flow.posted.push_back(std::move(wanted));
  if (number + 1 == flow.requested) acknowledge(id, flow);
  if (early != flow.early.end()) takeEarly(id, flow, number);
  // Now it is the turn of the next message, which may be here already (messages can overtake).
  bindAnyReceives(id);
}

// The message's receive is the last one that was posted.
void InFlows::takeEarly(const FlowId& id, Flow& flow, uint64_t number) {
  const auto early = flow.early.find(number);
  Posted& posted = flow.posted.back();
  const size_t cost = early->second.cost;
  for (const auto& [offset, payload] : early->second.frames) {
    if (!payload.empty()) std::memcpy(posted.at(offset), payload.data(), payload.size());
    posted.received += payload.size();
  }
  uncountEarly(id, posted.fingerprint);
  forgetEarly(id.peer, cost);
  flow.early.erase(early);
  posted.complete = posted.received == posted.bytes;
  consumed(id, flow, cost);
  completeFront(id);
}

void InFlows::postAny(AnyReceive any) {
  if (status_.failed()) return any.receive.done(peerLost(status_.failure));
  for (const int peer : any.peers) {
    const FlowId id{peer, any.channel, any.stream};
    const auto flow = flows_.find(id);
    if (flow == flows_.end() || !flow->second.hasNext()) continue;
    any.from(peer);
    return post(id, std::move(any.receive));
  }
  if (allLeft(any.peers)) {
    return any.receive.done(peerLost(JobStatus::leftText(any.peers.back())));
  }
  any_.push_back(std::move(any));
}

// If the next message of `id` is here without a receive, gives it to the oldest receive of any rank
// that accepts it; that receive then looks for the message after it.
void InFlows::bindAnyReceives(const FlowId& id) {
  if (any_.empty()) return;
  const auto flow = flows_.find(id);
  if (flow == flows_.end() || !flow->second.hasNext()) return;
  for (auto any = any_.begin(); any != any_.end(); ++any) {
    if (any->channel != id.channel || any->stream != id.stream) continue;
    if (std::find(any->peers.begin(), any->peers.end(), id.peer) == any->peers.end()) continue;
    AnyReceive taken = std::move(*any);
    any_.erase(any);
    taken.from(id.peer);
    return post(id, std::move(taken.receive));
  }
}

// Completes the receives at the head of the flow that have all their bytes, in order.
void InFlows::completeFront(const FlowId& id) {
  for (;;) {
    // Looked up anew: a callback may change the table.
    const auto found = flows_.find(id);
    if (found == flows_.end()) return;
    Flow& flow = found->second;
    if (flow.posted.empty() || !flow.posted.front().complete) return;
    const Done done = std::move(flow.posted.front().done);
    flow.posted.pop_front();
    ++flow.base;
    done(nullptr);
  }
}

// ---- frames ------------------------------------------------------------------------------------

std::byte* InFlows::placeFor(const FrameHeader& header) {
  const auto flow = flows_.find(flowOf(header));
  if (flow == flows_.end() || !flow->second.isCurrent(header.generation)) return nullptr;
  Posted* const posted = flow->second.postedFor(header.message);
  if (posted) posted->learnSize(header.message_bytes);
  if (!posted || posted->bytes != header.message_bytes ||
      posted->fingerprint != header.fingerprint || !fitsItsMessage(header)) {
    return nullptr;
  }
  return posted->at(header.offset);
}

bool InFlows::onData(const FrameHeader& header, PayloadBuffer payload, bool placed) {
  const FlowId id = flowOf(header);
  Flow& flow = flows_[id];
  if (!flow.isCurrent(header.generation)) {
    fail_("rank " + std::to_string(id.peer) + " has sent a frame of a flow that it had forgotten");
    return false;
  }
  Posted* const posted = flow.postedFor(header.message);
  if (posted == nullptr) {
    const bool first = keepEarly(id, flow, header, std::move(payload));
    bindAnyReceives(id);
    return first && header.stream < kFirstMessageStream;
  }
  if (!placed) {
    // It was posted, or bound, while the payload was still being read; or the ends disagree.
    if (!posted->done) return false;  // it has failed because the ends disagree
    posted->learnSize(header.message_bytes);
    Done done = std::exchange(posted->done, nullptr);
    if (!matches(id, *posted, header.message_bytes, header.fingerprint, done)) return false;
    posted->done = std::move(done);
    if (!payload.empty()) {
      std::memcpy(posted->at(header.offset), payload.data(), payload.size());
    }
  }
  posted->received += header.payload_bytes;
  posted->complete = posted->received == posted->bytes;
  consumed(id, flow, costOf(header.payload_bytes));
  completeFront(id);
  return false;
}

// The source asks for the receive of this message, of which it has perhaps sent nothing yet.
bool InFlows::onRequestToSend(const FrameHeader& header) {
  const FlowId id = flowOf(header);
  Flow& flow = flows_[id];
  if (!flow.isCurrent(header.generation)) return false;
  ++flow.requests;
  flow.requested = std::max(flow.requested, header.message + 1);
  if (flow.base + flow.posted.size() >= flow.requested) {
    acknowledge(id, flow);
    return false;
  }
  bindAnyReceives(id);
  return header.stream < kFirstMessageStream;
}

void InFlows::onAckRequest(const FrameHeader& header) {
  const FlowId id = flowOf(header);
  Flow& flow = flows_[id];
  if (!flow.isCurrent(header.generation)) return;  // its answer has come by other ways
  if (header.offset == 0) {
    flow.ack_at_once = true;
  } else {
    flow.requested = std::max(flow.requested, header.message);
    if (header.message_bytes < flow.acked) {
      logLine(LogLevel::kInfo, "rank " + std::to_string(id.peer) + " waits for " +
                                   std::to_string(flow.acked - header.message_bytes) +
                                   " bytes that were acknowledged: acknowledged again");
    }
  }
  acknowledge(id, flow);
  if (header.offset != 0) bindAnyReceives(id);
}

void InFlows::refuse(const FrameHeader& header) {
  acknowledgeEverything(flowOf(header), header.generation);
}

// ---- messages without a receive ----------------------------------------------------------------

// Keeps a frame whose receive is not posted yet. More than the limit is accepted, for what is left
// of a channel that has failed at the source. Returns whether it is the first of its message.
bool InFlows::keepEarly(const FlowId& id, Flow& flow, const FrameHeader& header,
                        PayloadBuffer payload) {
  Sender& sender = senders_[id.peer];
  const size_t cost = costOf(header.payload_bytes);
  if (sender.early + cost > 2 * limits_.early_peer) {
    fail_("rank " + std::to_string(id.peer) + " has sent more than " +
          std::to_string(2 * limits_.early_peer) +
          " bytes that no receive was posted for, without asking");
    return false;
  }
  sender.early += cost;
  kept_early_.add(cost);
  Early& early = flow.early[header.message];
  early.message_bytes = header.message_bytes;
  early.fingerprint = header.fingerprint;
  early.cost += cost;
  early.frames.emplace_back(header.offset, std::move(payload));
  if (early.frames.size() > 1) return false;
  if (id.stream < kFirstMessageStream) {
    ++early_calls_[callKey(id.channel, callNumberOf(header.fingerprint))];
  }
  return true;
}

void InFlows::forgetEarly(int source, size_t cost) {
  senders_[source].early -= cost;
  kept_early_.remove(cost);
}

void InFlows::uncountEarly(const FlowId& id, uint64_t fingerprint) {
  if (id.stream >= kFirstMessageStream) return;
  const auto found = early_calls_.find(callKey(id.channel, callNumberOf(fingerprint)));
  if (found != early_calls_.end() && --found->second == 0) early_calls_.erase(found);
}

std::optional<int> InFlows::senderWithoutReceive(uint32_t channel, uint32_t call) const {
  if (early_calls_.empty() || !early_calls_.contains(callKey(channel, call))) return std::nullopt;
  for (const auto& [id, flow] : flows_) {
    if (id.channel != channel || id.stream >= kFirstMessageStream) continue;
    for (const auto& [message, early] : flow.early) {
      if (callNumberOf(early.fingerprint) == call) return id.peer;
    }
  }
  return std::nullopt;
}

// ---- acknowledgements --------------------------------------------------------------------------

uint64_t InFlows::consumedOf(const FlowId& id) const {
  const auto found = flows_.find(id);
  return found == flows_.end() ? 0 : found->second.consumed;
}

void InFlows::consumed(const FlowId& id, Flow& flow, size_t cost) {
  flow.consumed += cost;
  if (flow.ack_at_once) return acknowledge(id, flow);
  Sender& sender = senders_[id.peer];
  sender.unacked_bytes += cost;
  if (!std::exchange(flow.listed, true)) sender.unacked.push_back(id);
  if (sender.unacked_bytes < limits_.ack) return;
  for (const FlowId& listed : sender.unacked) {
    const auto found = flows_.find(listed);
    if (found == flows_.end()) continue;
    found->second.listed = false;
    if (found->second.consumed != found->second.acked) acknowledge(listed, found->second);
  }
  sender.unacked.clear();
  sender.unacked_bytes = 0;
}

// What is consumed, and which messages may come without asking.
void InFlows::acknowledge(const FlowId& id, Flow& flow) {
  flow.acked = flow.consumed;
  FrameHeader header;
  header.type = FrameType::kAck;
  header.channel = id.channel;
  header.stream = id.stream;
  header.message = flow.base + flow.posted.size();
  header.message_bytes = flow.consumed;
  header.offset = flow.requests;
  header.generation = flow.generation;
  routes_.sendControl(id.peer, header, "");
}

// Of a channel that is closed here.
void InFlows::acknowledgeEverything(const FlowId& id, uint32_t generation) {
  FrameHeader header;
  header.type = FrameType::kAck;
  header.channel = id.channel;
  header.stream = id.stream;
  header.message_bytes = kEverything;
  header.generation = generation;
  routes_.sendControl(id.peer, header, "");
}

// ---- flows that end ----------------------------------------------------------------------------

void InFlows::closeChannel(uint32_t channel) {
  for (const auto& [id, flow] : flows_) {
    if (id.channel != channel) continue;
    for (const Posted& posted : flow.posted) {
      for (const auto& [spec, link] : links_) link->redirect(posted.at(0), posted.at(posted.bytes));
    }
    if (flow.consumed != flow.acked || !flow.early.empty() || flow.requested > flow.base) {
      acknowledgeEverything(id, flow.generation);
    }
    for (const auto& [number, early] : flow.early) forgetEarly(id.peer, early.cost);
  }
  std::erase_if(flows_, [&](const auto& entry) { return entry.first.channel == channel; });
  std::erase_if(early_calls_, [&](const auto& entry) { return entry.first >> 32 == channel; });
  std::erase_if(any_, [&](const AnyReceive& any) { return any.channel == channel; });
}

bool InFlows::allLeft(const std::vector<int>& peers) const {
  return !peers.empty() && std::all_of(peers.begin(), peers.end(),
                                       [this](int peer) { return status_.hasLeft(peer); });
}

std::set<uint32_t> InFlows::waitingFor(int rank) const {
  std::set<uint32_t> waiting;
  for (const auto& [id, flow] : flows_) {
    if (id.peer == rank && !flow.posted.empty()) waiting.insert(id.channel);
  }
  for (const AnyReceive& any : any_) {
    if (allLeft(any.peers)) waiting.insert(any.channel);
  }
  return waiting;
}

void InFlows::onForget(const FrameHeader& header, const PayloadBuffer& payload) {
  for (size_t at = 0; at + sizeof(FlowName) <= payload.size(); at += sizeof(FlowName)) {
    FlowName name;
    std::memcpy(&name, payload.data() + at, sizeof name);
    const auto found = flows_.find({header.source, name.channel, name.stream});
    if (found == flows_.end()) continue;
    Flow& flow = found->second;
    if (!flow.begun || !isOlder(flow.generation, header.generation)) continue;
    if (flow.posted.empty() && flow.early.empty()) {
      flows_.erase(found);
    } else {
      flow.beginAnew();
    }
  }
}

// All messages of its generation are here and taken; the receives that are posted are for the next
// one.
void InFlows::Flow::beginAnew() {
  base = 0;
  consumed = acked = 0;
  requested = 0;
  requests = 0;
  begun = false;
}

// Whether a frame of this generation is about the flow as it is, or begins it; else it is late.
bool InFlows::Flow::isCurrent(uint32_t frame_generation) {
  if (begun && frame_generation == generation) return true;
  if (begun && isOlder(frame_generation, generation)) return false;
  if (begun) beginAnew();
  begun = true;
  generation = frame_generation;
  return true;
}

}  // namespace topoopt
