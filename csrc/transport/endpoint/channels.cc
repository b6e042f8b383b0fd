#include "transport/endpoint/channels.h"

#include "common/errors.h"

namespace topoopt {
namespace {

// Closed channels of which frames are still recognised when they come late.
constexpr size_t kRememberedChannels = 4096;
// Kept for groups that this rank has not created yet.
constexpr size_t kMostEarlyControls = 256;

// Numbers may wrap around; no rank is half of all numbers ahead of another.
bool isBefore(uint32_t number, uint32_t other) { return static_cast<int32_t>(number - other) < 0; }

}  // namespace

void Channels::open(uint32_t channel, ChannelEvents events) {
  open_[channel] = {std::move(events)};
  for (const auto& [header, payload] : std::exchange(early_controls_, {})) {
    onControl(header, payload);
  }
}

bool Channels::close(uint32_t channel, const std::string& why) {
  const auto open = open_.find(channel);
  const uint64_t next_call = open == open_.end() ? 0 : open->second.next_call;
  if (!closed_.try_emplace(channel, Closed{why, next_call}).second) return false;
  closed_order_.push_back(channel);
  open_.erase(channel);
  return true;
}

std::optional<uint32_t> Channels::forgetOldest() {
  if (closed_order_.size() <= kRememberedChannels) return std::nullopt;
  const uint32_t channel = closed_order_.front();
  closed_order_.pop_front();
  closed_.erase(channel);
  return channel;
}

// ---- calls of owners ---------------------------------------------------------------------------

void Channels::failAll(const std::string& why) const {
  const auto channels = open_;
  for (const auto& [number, channel] : channels) channel.events.failed(peerLost(why));
}

std::function<void(std::exception_ptr)> Channels::failureHandler(uint32_t channel) const {
  const auto found = open_.find(channel);
  if (found == open_.end()) return nullptr;
  return found->second.events.failed;
}

void Channels::linksChanged() const {
  const auto channels = open_;
  for (const auto& [number, channel] : channels) {
    if (channel.events.links_changed) channel.events.links_changed();
  }
}

void Channels::left(int rank) const {
  const auto channels = open_;
  for (const auto& [number, channel] : channels) {
    if (channel.events.left) channel.events.left(rank);
  }
}

void Channels::left(uint32_t channel, int rank) const {
  const auto found = open_.find(channel);
  if (found == open_.end()) return;
  const auto left = found->second.events.left;
  if (left) left(rank);
}

// ---- collectives -------------------------------------------------------------------------------

bool Channels::finishCall(uint32_t channel, uint64_t number) {
  const auto found = open_.find(channel);
  if (found == open_.end()) return false;
  found->second.next_call = number + 1;
  return true;
}

void Channels::reportIfOver(const FrameHeader& header) {
  const uint32_t number = callNumberOf(header.fingerprint);
  const auto channel = open_.find(header.channel);
  if (channel == open_.end()) return;
  if (!isBefore(number, static_cast<uint32_t>(channel->second.next_call))) return;
  reportUnmatched(header.channel, header.source, number);
}

// Not at once: this may be in the middle of a receive.
void Channels::reportUnmatched(uint32_t channel, int peer, uint32_t number) {
  reactor_.post([this, channel, peer, number] {
    const auto found = open_.find(channel);
    if (found == open_.end() || !found->second.events.unmatched) return;
    const auto unmatched = found->second.events.unmatched;
    unmatched(peer, number);
  });
}

void Channels::onControl(const FrameHeader& header, const std::string& payload) {
  const auto channel = open_.find(header.channel);
  if (channel != open_.end()) {
    const auto control = channel->second.events.control;
    if (control) control(header, payload);
    return;
  }
  const auto closed = closed_.find(header.channel);
  FrameHeader answer;
  answer.channel = header.channel;
  if (header.type == FrameType::kStateRequest) {
    answer.type = FrameType::kState;
    return routes_.sendControl(header.source, answer,
                               closed == closed_.end()
                                   ? "has not created the group"
                                   : "has ended the group: " + closed->second.why);
  }
  if (header.type != FrameType::kRings && header.type != FrameType::kRingsStart &&
      header.type != FrameType::kSizes) {
    return;
  }
  if (closed == closed_.end()) {
    early_controls_.emplace_back(header, payload);
    if (early_controls_.size() > kMostEarlyControls) early_controls_.pop_front();
  } else if (header.type == FrameType::kRings) {
    answer.type = FrameType::kRingsAnswer;
    answer.offset = closed->second.next_call;
    answer.message = header.message;
    routes_.sendControl(header.source, answer, "");
  }
}

}  // namespace topoopt
