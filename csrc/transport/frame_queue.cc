#include "transport/frame_queue.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace topoopt {
namespace {

// What leaves in one go: enough to make small frames cheap, little enough that a control frame does
// not wait long behind it.
constexpr size_t kBatchBytes = 64 << 10;
constexpr size_t kBatchFrames = FrameQueue::kMaxParts / 2;
constexpr size_t kTurnBytes = 64 << 10;
// Queues of flows that have nothing to send are kept for their next frame, up to so many.
constexpr size_t kIdleFlows = 64;

size_t sizeOf(const FrameHeader& header) { return sizeof header + header.payload_bytes; }

}  // namespace

void FrameQueue::startBusy() {
  if (std::exchange(busy_, true)) return;
  busy_since_ = Clock::now();
}

void FrameQueue::stopBusy() {
  if (!std::exchange(busy_, false)) return;
  counters_.busy_s += std::chrono::duration<double>(Clock::now() - busy_since_).count();
}

LinkCounters FrameQueue::counters() const {
  LinkCounters counters = counters_;
  if (busy_) counters.busy_s += std::chrono::duration<double>(Clock::now() - busy_since_).count();
  return counters;
}

void FrameQueue::push(OutFrame frame) {
  startBusy();
  if (relayed(frame.header)) {
    relay_bytes_ += frame.header.payload_bytes;
    counters_.relay_peak_bytes = std::max(counters_.relay_peak_bytes, relay_bytes_);
  }
  auto& entry = *flows_.try_emplace(FlowKey::of(frame.header)).first;
  if (entry.second.frames.empty()) turns_.push_back(&entry);
  entry.second.frames.push_back(std::move(frame));
}

void FrameQueue::pushControl(OutFrame frame) {
  startBusy();
  control_.push_back(std::move(frame));
}

bool FrameQueue::takeNext() {
  if (!control_.empty()) {
    ready_.push_back(std::move(control_.front()));
    control_.pop_front();
  } else if (!turns_.empty()) {
    for (;;) {
      Flow& flow = turns_.front()->second;
      const size_t cost = sizeOf(flow.frames.front().header);
      if (flow.credit_bytes >= cost) {
        flow.credit_bytes -= cost;
        break;
      }
      flow.credit_bytes += kTurnBytes;
      turns_.push_back(turns_.front());
      turns_.pop_front();
    }
    auto& entry = *turns_.front();
    ready_.push_back(std::move(entry.second.frames.front()));
    entry.second.frames.pop_front();
    if (entry.second.frames.empty()) {
      turns_.pop_front();
      entry.second.credit_bytes = 0;
      if (flows_.size() > kIdleFlows) flows_.erase(flows_.find(entry.first));
    }
  } else {
    return false;
  }
  OutFrame& frame = ready_.back();
  if (!frame.owned.empty()) frame.payload = frame.owned.data();
  ready_bytes_ += sizeOf(frame.header);
  return true;
}

int FrameQueue::gather(iovec* parts) {
  while (ready_bytes_ - written_ < kBatchBytes && ready_.size() < kBatchFrames && takeNext()) {
  }
  int count = 0;
  size_t skip = written_;
  for (OutFrame& frame : ready_) {
    if (skip < sizeof frame.header) {
      parts[count++] = {reinterpret_cast<std::byte*>(&frame.header) + skip,
                        sizeof frame.header - skip};
      skip = 0;
    } else {
      skip -= sizeof frame.header;
    }
    if (frame.header.payload_bytes > skip) {
      parts[count++] = {const_cast<std::byte*>(frame.payload) + skip,
                        frame.header.payload_bytes - skip};
    }
    skip = 0;
  }
  return count;
}

void FrameQueue::account(const FrameHeader& header) {
  const bool payload = countsAsPayload(header);
  counters_.sent_bytes += payload ? header.payload_bytes : 0;
  counters_.overhead_bytes += payload ? sizeof header : sizeOf(header);
  if (header.type == FrameType::kData && relayed(header)) {
    counters_.relayed_bytes += payload ? header.payload_bytes : 0;
    relay_bytes_ -= header.payload_bytes;
  }
}

void FrameQueue::wrote(size_t bytes) {
  written_ += bytes;
  while (!ready_.empty() && written_ >= sizeOf(ready_.front().header)) {
    const FrameHeader header = ready_.front().header;
    const std::shared_ptr<SendProgress> message = std::move(ready_.front().message);
    written_ -= sizeOf(header);
    ready_bytes_ -= sizeOf(header);
    ready_.pop_front();
    account(header);
    if (empty()) stopBusy();
    if (!message) continue;
    message->unsent_bytes -= header.payload_bytes;
    if (message->unsent_bytes == 0) std::exchange(message->done, nullptr)(nullptr);
  }
}

bool FrameQueue::ownData(const OutFrame& frame, uint32_t channel) const {
  return frame.header.type == FrameType::kData && frame.header.channel == channel &&
         !relayed(frame.header);
}

void FrameQueue::dropOwn(uint32_t channel, BufferPool& buffers,
                         const std::function<void(const FrameHeader&)>& dropped) {
  std::erase_if(turns_, [&](const Flows::value_type* entry) {
    if (entry->first.channel != channel || entry->first.source != rank_) return false;
    for (const OutFrame& frame : entry->second.frames) dropped(frame.header);
    flows_.erase(flows_.find(entry->first));
    return true;
  });
  for (auto frame = ready_.begin(); frame != ready_.end();) {
    if (!ownData(*frame, channel)) {
      ++frame;
    } else if (frame == ready_.begin() && written_ > 0) {
      frame->message.reset();
      if (frame->owned.empty() && frame->header.payload_bytes > 0) {
        frame->owned = buffers.take(frame->header.payload_bytes);
        std::memcpy(frame->owned.data(), frame->payload, frame->header.payload_bytes);
        frame->payload = frame->owned.data();
      }
      ++frame;
    } else {
      dropped(frame->header);
      ready_bytes_ -= sizeOf(frame->header);
      frame = ready_.erase(frame);
    }
  }
  if (empty()) stopBusy();
}

void FrameQueue::dropData() {
  turns_.clear();
  flows_.clear();
  const auto first = ready_.begin() + (written_ > 0 ? 1 : 0);
  ready_.erase(
      std::remove_if(first, ready_.end(),
                     [](const OutFrame& frame) { return frame.header.type == FrameType::kData; }),
      ready_.end());
  relay_bytes_ = 0;
  ready_bytes_ = 0;
  for (const OutFrame& frame : ready_) {
    ready_bytes_ += sizeOf(frame.header);
    if (frame.header.type == FrameType::kData && relayed(frame.header)) {
      relay_bytes_ += frame.header.payload_bytes;
    }
  }
  if (empty()) stopBusy();
}

void FrameQueue::clear() {
  written_ = 0;
  control_.clear();
  ready_.clear();
  dropData();
}

}  // namespace topoopt
