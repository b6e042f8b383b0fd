// What an endpoint knows of collectives: messages that no receive can belong to, and the frames by
// which members compare what they are in.

#include <utility>

#include "transport/endpoint/endpoint.h"

namespace topoopt {
namespace {

// Kept for groups that this rank has not created yet.
constexpr size_t kMostEarlyControls = 256;

uint64_t callKey(uint32_t channel, uint32_t number) {
  return static_cast<uint64_t>(channel) << 32 | number;
}

// Numbers may wrap around; no rank is half of all numbers ahead of another.
bool isBefore(uint32_t number, uint32_t other) { return static_cast<int32_t>(number - other) < 0; }

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

uint64_t Endpoint::consumedOf(const FlowId& flow) const {
  const auto found = in_.find(flow);
  return found == in_.end() ? 0 : found->second.consumed;
}

// ---- messages without a receive ----------------------------------------------------------------

void Endpoint::countEarly(const FrameHeader& header) {
  ++early_calls_[callKey(header.channel, callNumberOf(header.fingerprint))];
  reportIfOver(header);
}

void Endpoint::reportIfOver(const FrameHeader& header) {
  const uint32_t number = callNumberOf(header.fingerprint);
  const auto channel = channels_.find(header.channel);
  if (channel == channels_.end() ||
      !isBefore(number, static_cast<uint32_t>(channel->second.next_call)))
    return;
  reportUnmatched(header.channel, header.source, number);
}

void Endpoint::uncountEarly(const FlowId& id, uint64_t fingerprint) {
  if (id.stream >= kFirstMessageStream) return;
  const auto found = early_calls_.find(callKey(id.channel, callNumberOf(fingerprint)));
  if (found != early_calls_.end() && --found->second == 0) early_calls_.erase(found);
}

void Endpoint::finishCall(uint32_t channel, uint64_t number) {
  const auto found = channels_.find(channel);
  if (found == channels_.end()) return;
  const auto over = static_cast<uint32_t>(number);
  found->second.next_call = number + 1;
  if (early_calls_.empty() || !early_calls_.contains(callKey(channel, over))) return;
  for (const auto& [id, flow] : in_) {
    if (id.channel != channel || id.stream >= kFirstMessageStream) continue;
    for (const auto& [message, early] : flow.early) {
      if (callNumberOf(early.fingerprint) == over) return reportUnmatched(channel, id.peer, over);
    }
  }
}

// Not at once: this may be in the middle of a receive.
void Endpoint::reportUnmatched(uint32_t channel, int peer, uint32_t number) {
  reactor_.post([this, channel, peer, number] {
    const auto found = channels_.find(channel);
    if (found == channels_.end() || !found->second.events.unmatched) return;
    const auto unmatched = found->second.events.unmatched;
    unmatched(peer, number);
  });
}

// ---- what members say to each other ------------------------------------------------------------

void Endpoint::onControl(const FrameHeader& header, const std::string& payload) {
  const auto channel = channels_.find(header.channel);
  if (channel != channels_.end()) {
    const auto control = channel->second.events.control;
    if (control) control(header, payload);
    return;
  }
  const auto closed = closed_channels_.find(header.channel);
  FrameHeader answer;
  answer.channel = header.channel;
  if (header.type == FrameType::kStateAsk) {
    answer.type = FrameType::kState;
    return sendControl(header.source, answer,
                       closed == closed_channels_.end()
                           ? "has not created the group"
                           : "has ended the group: " + closed->second.why);
  }
  if (header.type != FrameType::kRings && header.type != FrameType::kRingsStart) return;
  if (closed == closed_channels_.end()) {
    early_controls_.emplace_back(header, payload);
    if (early_controls_.size() > kMostEarlyControls) early_controls_.pop_front();
  } else if (header.type == FrameType::kRings) {
    answer.type = FrameType::kRingsAnswer;
    answer.offset = closed->second.next_call;
    answer.message = header.message;
    sendControl(header.source, answer, "");
  }
}

}  // namespace topoopt
