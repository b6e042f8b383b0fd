// How an endpoint ends: channels that close or fail, links that are lost, and taking leave.

#include <algorithm>
#include <iterator>
#include <utility>

#include "common/errors.h"
#include "transport/endpoint/endpoint.h"

namespace topoopt {
namespace {

// Closed channels of which frames are still recognised when they come late.
constexpr size_t kRememberedChannels = 4096;

}  // namespace

// ---- channels and failures ---------------------------------------------------------------------

void Endpoint::openChannel(uint32_t channel, ChannelEvents events) {
  if (status_.failed()) return events.failed(peerLost(status_.failure));
  if (const auto closed = closed_channels_.find(channel); closed != closed_channels_.end()) {
    return events.failed(peerLost(closed->second.why));
  }
  channels_[channel] = {std::move(events)};
  if (graph_ && !graph_->intact()) reports_->announce();
  for (const auto& [header, payload] : std::exchange(early_controls_, {})) {
    onControl(header, payload);
  }
  const auto left = channels_.at(channel).events.left;
  if (!left) return;
  for (const int rank : std::set<int>(status_.left)) left(rank);
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
  end_.forgetChannel(channel);
}

void Endpoint::failChannel(uint32_t channel, const std::string& why, bool broadcast) {
  closeChannel(channel, why);
  for (auto& [id, flow] : out_) {
    if (id.channel == channel) release(id, flow);
  }
  std::erase_if(out_, [&](const auto& entry) { return entry.first.channel == channel; });
  resumeWaiting();
  if (broadcast) end_.broadcastFailure(channel, why);
}

void Endpoint::onJobFailed(const std::string& why) {
  // The callbacks close or fail channels themselves.
  const auto channels = channels_;
  for (const auto& [number, channel] : channels) channel.events.failed(peerLost(why));
}

void Endpoint::onChannelFailed(uint32_t channel, const std::string& why) {
  const auto found = channels_.find(channel);
  if (found == channels_.end()) return closeChannel(channel, why);
  const auto failed = found->second.events.failed;
  failed(peerLost(why));
}

void Endpoint::onLost(Link& link, Loss loss, const std::string& why) {
  // Not at once: this may be in the middle of a send.
  const auto delay = link.holds() ? kLateTime : std::chrono::milliseconds(0);
  reactor_.after(delay, [this, &link, loss, why] {
    if (end_.allLeft()) return end_.continueLeaving();
    if (status_.failed()) return;
    if (link.cable() != kNoCable && !link.dead()) return;  // it already has a new connection
    if (link.cable() != kNoCable && cables_) return cables_->onLost(link, loss, why);
    end_.failAll("lost the link " + textOf(link.name()) + ": " + why);
  });
}

// ---- leaving -----------------------------------------------------------------------------------

bool Endpoint::allLeft(const std::vector<int>& peers) const {
  return !peers.empty() && std::all_of(peers.begin(), peers.end(),
                                       [this](int peer) { return status_.hasLeft(peer); });
}

void Endpoint::onRankLeft(int rank) {
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
    const std::string why = JobStatus::leftText(rank);
    failChannel(channel, why, true);
    failed(peerLost(why));
  }
  // The callbacks close or fail channels themselves.
  const auto channels = channels_;
  for (const auto& [number, channel] : channels) {
    if (channel.events.left) channel.events.left(rank);
  }
}

void Endpoint::requestAcknowledgements() {
  for (const auto& [id, flow] : out_) {
    if (flow.sent == flow.acked || status_.hasLeft(id.peer)) continue;
    FrameHeader header;
    header.type = FrameType::kAckRequest;
    header.channel = id.channel;
    header.stream = id.stream;
    sendControl(id.peer, header, "");
  }
}

bool Endpoint::allConsumed() const {
  return std::all_of(out_.begin(), out_.end(), [](const auto& entry) {
    return entry.second.pending.empty() && entry.second.sent == entry.second.acked;
  });
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
    list.push_back({spec.link, link->counters(), spec.kind, spec.sends, spec.cable, end_.wasUp(i)});
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
