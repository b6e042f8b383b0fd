// How an endpoint ends: channels that close or fail, links that are lost, and taking leave.

#include <algorithm>
#include <iterator>
#include <utility>

#include "common/errors.h"
#include "transport/endpoint/endpoint.h"

namespace topoopt {
namespace {

// How long a rank that fails stays to broadcast why.
constexpr std::chrono::seconds kDeliveryLimit{2};
constexpr std::chrono::milliseconds kDeliveryInterval{1};
// Closed channels of which frames are still recognised when they come late.
constexpr size_t kRememberedChannels = 4096;

}  // namespace

std::string Endpoint::leftText(int rank) {
  return "rank " + std::to_string(rank) + " has left the job";
}

// ---- channels and failures ---------------------------------------------------------------------

void Endpoint::openChannel(uint32_t channel, ChannelEvents events) {
  if (!failure_.empty()) return events.failed(peerLost(failure_));
  if (const auto closed = closed_channels_.find(channel); closed != closed_channels_.end()) {
    return events.failed(peerLost(closed->second.why));
  }
  channels_[channel] = {std::move(events)};
  if (graph_ && !graph_->intact()) announceChange();
  for (const auto& [header, payload] : std::exchange(early_controls_, {})) {
    onControl(header, payload);
  }
  const auto left = channels_.at(channel).events.left;
  if (!left) return;
  for (const int rank : std::set<int>(left_)) left(rank);
}

void Endpoint::closeChannel(uint32_t channel, const std::string& why) {
  const auto open = channels_.find(channel);
  const uint64_t next_call = open == channels_.end() ? 0 : open->second.next_call;
  if (!closed_channels_.try_emplace(channel, ClosedChannel{why, next_call}).second) return;
  closed_order_.push_back(channel);
  if (closed_order_.size() > kRememberedChannels) forgetChannel(closed_order_.front());
  channels_.erase(channel);
  const auto dropped = [&](const FrameHeader& header) {
    // It will not be consumed, so nothing may wait for that.
    const auto flow = out_.find({header.target, channel, header.stream});
    if (flow != out_.end()) flow->second.sent -= costOf(header.payload_bytes);
  };
  routes_.dropOwn(channel, dropped);
  for (auto& [id, flow] : in_) {
    if (id.channel != channel) continue;
    for (const Posted& posted : flow.posted) {
      for (const auto& [spec, link] : links_)
        link->redirect(posted.data, posted.data + posted.bytes);
    }
    if (flow.consumed != flow.acked || !flow.early.empty() || flow.requested > flow.base) {
      acknowledgeEverything(id, flow.generation);
    }
    for (const auto& [number, early] : flow.early) forgetEarly(id.peer, early.cost);
  }
  std::erase_if(in_, [&](const auto& entry) { return entry.first.channel == channel; });
  std::erase_if(early_calls_, [&](const auto& entry) { return entry.first >> 32 == channel; });
  std::erase_if(any_, [&](const AnyReceive& any) { return any.channel == channel; });
  // What was sent completely but not yet consumed is still waited for when this rank leaves.
  for (auto entry = out_.begin(); entry != out_.end();) {
    auto& [id, flow] = *entry;
    if (id.channel == channel) {
      flow.pending.clear();
      settle(id, flow);
    }
    entry = id.channel == channel && flow.sent == flow.acked ? out_.erase(entry) : std::next(entry);
  }
  resumeWaiting();
}

// Of a channel that was closed so long ago that nothing of it is on its way any more.
void Endpoint::forgetChannel(uint32_t channel) {
  closed_order_.pop_front();
  closed_channels_.erase(channel);
  failures_seen_.erase(failures_seen_.lower_bound({channel, 0}),
                       failures_seen_.upper_bound({channel, config_.size}));
}

void Endpoint::failChannel(uint32_t channel, const std::string& why, bool broadcast) {
  closeChannel(channel, why);
  for (auto& [id, flow] : out_) {
    if (id.channel == channel) release(id, flow);
  }
  std::erase_if(out_, [&](const auto& entry) { return entry.first.channel == channel; });
  resumeWaiting();
  if (broadcast) broadcastFailure(channel, why);
}

void Endpoint::broadcastFailure(uint32_t channel, const std::string& why) {
  if (!failures_seen_.emplace(channel, config_.rank).second) return;
  FrameHeader header;
  header.type = FrameType::kFailure;
  header.source = static_cast<uint16_t>(config_.rank);
  header.channel = channel;
  routes_.flood(header, why, nullptr);
}

void Endpoint::failAll(const std::string& why, bool broadcast) {
  if (!failure_.empty()) return;
  failure_ = why;
  for (const auto& [spec, link] : links_) up_at_failure_.push_back(link->usable());
  if (broadcast) broadcastFailure(kAllChannels, why);
  // The callbacks close or fail channels themselves.
  const auto channels = channels_;
  for (const auto& [number, channel] : channels) channel.events.failed(peerLost(why));
  resolveLeaving(why);
}

void Endpoint::fail(const std::string& why) {
  std::promise<void> delivered;
  auto result = delivered.get_future();
  // The data that waits is of no use any more, and the reason shall not wait behind it. Members of
  // a group in shared memory read there what this rank's groups fail for, so that names the rank
  // too.
  reactor_.run([&] {
    if (failure_.empty()) broadcastFailure(kAllChannels, why);
    failAll("rank " + std::to_string(config_.rank) + " failed: " + why, false);
    for (const auto& [spec, link] : links_) link->dropData();
    waitForDelivery(Reactor::Clock::now() + kDeliveryLimit, delivered);
  });
  result.wait();
}

// Looks again until the neighbours have all that was sent to them; nothing reports when a system on
// the other side has taken it.
void Endpoint::waitForDelivery(Reactor::Clock::time_point limit, std::promise<void>& delivered) {
  const bool all = std::all_of(links_.begin(), links_.end(), [](const OpenLink& open) {
    return open.link->dead() || open.link->delivered();
  });
  const auto now = Reactor::Clock::now();
  if (all || now >= limit) return delivered.set_value();
  reactor_.at(now + kDeliveryInterval,
              [this, limit, &delivered] { waitForDelivery(limit, delivered); });
}

void Endpoint::onLost(Link& link, Loss loss, const std::string& why) {
  // Not at once: this may be in the middle of a send.
  const auto delay = link.holds() ? kLateTime : std::chrono::milliseconds(0);
  reactor_.after(delay, [this, &link, loss, why] {
    if (static_cast<int>(left_.size()) == config_.size) return continueLeaving();
    if (!failure_.empty()) return;
    if (link.cable() != kNoCable && !link.dead()) return;  // it already has a new connection
    if (link.cable() != kNoCable) return cableLost(link, loss, why);
    failAll("lost the link " + textOf(link.name()) + ": " + why, true);
  });
}

void Endpoint::onFlooded(Link& link, const FrameHeader& header, const std::string& text) {
  if (header.type == FrameType::kLeave) {
    if (left_.contains(header.source)) return;
    routes_.flood(header, text, &link);
    return markLeft(header.source);
  }
  if (!failures_seen_.emplace(header.channel, header.source).second) return;
  routes_.flood(header, text, &link);
  const std::string why = "rank " + std::to_string(header.source) + " failed: " + text;
  if (header.channel == kAllChannels) return failAll(why, false);
  const auto channel = channels_.find(header.channel);
  if (channel == channels_.end()) return closeChannel(header.channel, why);
  const auto failed = channel->second.events.failed;
  failed(peerLost(why));
}

// ---- leaving -----------------------------------------------------------------------------------

bool Endpoint::allLeft(const std::vector<int>& peers) const {
  return !peers.empty() &&
         std::all_of(peers.begin(), peers.end(), [this](int peer) { return left_.contains(peer); });
}

// A rank only leaves when all that it sent is consumed, so a receive that waits for it now is
// unmatched.
void Endpoint::markLeft(int rank) {
  left_.insert(rank);
  std::set<uint32_t> waiting;
  for (auto& [id, flow] : in_) {
    if (id.peer == rank && !flow.posted.empty()) waiting.insert(id.channel);
  }
  for (auto& [id, flow] : out_) {
    if (id.peer != rank) continue;
    release(id, flow);
    if (!flow.pending.empty()) waiting.insert(id.channel);
  }
  for (const AnyReceive& any : any_) {
    if (allLeft(any.peers)) waiting.insert(any.channel);
  }
  for (const uint32_t channel : waiting) {
    const auto found = channels_.find(channel);
    if (found == channels_.end()) continue;
    const auto failed = found->second.events.failed;
    const std::string why = leftText(rank);
    failChannel(channel, why, true);
    failed(peerLost(why));
  }
  // The callbacks close or fail channels themselves.
  const auto channels = channels_;
  for (const auto& [number, channel] : channels) {
    if (channel.events.left) channel.events.left(rank);
  }
  continueLeaving();
}

std::string Endpoint::leave(std::chrono::milliseconds limit) {
  std::future<std::string> result;
  reactor_.run([&] {
    leaving_ = std::make_unique<Leaving>();
    result = leaving_->result.get_future();
    if (!failure_.empty()) return resolveLeaving(failure_);
    for (const auto& [id, flow] : out_) {
      if (flow.sent == flow.acked || left_.contains(id.peer)) continue;
      FrameHeader header;
      header.type = FrameType::kAckRequest;
      header.channel = id.channel;
      header.stream = id.stream;
      sendControl(id.peer, header, "");
    }
    reactor_.after(limit,
                   [this] { resolveLeaving("other ranks had not left after the time limit"); });
    continueLeaving();
  });
  return result.get();
}

void Endpoint::continueLeaving() {
  if (!leaving_ || leaving_->resolved) return;
  if (!leaving_->announced) {
    for (const auto& [id, flow] : out_) {
      if (!flow.pending.empty() || flow.sent != flow.acked) return;
    }
    leaving_->announced = true;
    FrameHeader header;
    header.type = FrameType::kLeave;
    header.source = static_cast<uint16_t>(config_.rank);
    routes_.flood(header, "", nullptr);
    left_.insert(config_.rank);
  }
  if (static_cast<int>(left_.size()) < config_.size) return;
  // All ranks have left, and each rank passed that on before it ends its side of a link. A link
  // closes when both sides have ended, so that nothing in flight is cut off.
  if (!std::exchange(leaving_->closing, true)) {
    for (const auto& [spec, link] : links_) link->finish();
  }
  const bool open =
      std::any_of(links_.begin(), links_.end(), [](const OpenLink& o) { return !o.link->dead(); });
  if (!open) resolveLeaving("");
}

void Endpoint::resolveLeaving(const std::string& result) {
  if (!leaving_ || std::exchange(leaving_->resolved, true)) return;
  leaving_->result.set_value(result);
}

std::vector<LinkTraffic> Endpoint::traffic() {
  std::vector<LinkTraffic> list;
  reactor_.run([&] { list = trafficOnLoop(); });
  return list;
}

std::vector<LinkTraffic> Endpoint::trafficOnLoop() const {
  std::vector<LinkTraffic> list;
  for (size_t i = 0; i < links_.size(); ++i) {
    const auto& [spec, link] = links_[i];
    const bool up = failure_.empty() ? link->usable() : up_at_failure_[i];
    list.push_back({spec.link, link->counters(), spec.kind, spec.sends, spec.cable, up});
  }
  return list;
}

std::vector<std::vector<uint64_t>> Endpoint::iterationBytes(uint64_t first, size_t count) {
  std::vector<std::vector<uint64_t>> list;
  reactor_.run([&] {
    for (const auto& [spec, link] : links_) list.push_back(link->iterations().from(first, count));
  });
  return list;
}

std::vector<uint64_t> Endpoint::ownIterationBytes(uint64_t first, size_t count) {
  std::vector<uint64_t> list;
  reactor_.run([&] { list = own_iterations_.from(first, count); });
  return list;
}

}  // namespace topoopt
