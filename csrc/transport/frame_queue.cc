#include "transport/frame_queue.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace topoopt {
namespace {

constexpr size_t kBatchFrames = FrameQueue::kMaxParts / 2;
constexpr size_t kTurnBytes = 64 << 10;
// Queues of flows that have nothing to send are kept for their next frame, up to so many.
constexpr size_t kIdleFlows = 64;

size_t sizeOf(const FrameHeader& header) { return sizeof header + header.payload_bytes; }

}  // namespace

void IterationBytes::add(uint16_t iteration, uint64_t bytes) {
  const uint64_t newest = first_ + bytes_.size() - 1;
  const auto ahead = static_cast<int16_t>(iteration - static_cast<uint16_t>(newest));
  if (ahead > 0) {
    bytes_.resize(bytes_.size() + static_cast<size_t>(ahead), 0);
    const size_t over = bytes_.size() - std::min(bytes_.size(), kMost);
    bytes_.erase(bytes_.begin(), bytes_.begin() + static_cast<ptrdiff_t>(over));
    first_ += over;
  } else if (static_cast<size_t>(-ahead) >= bytes_.size()) {
    return;  // forgotten
  }
  bytes_[bytes_.size() - 1 - static_cast<size_t>(ahead > 0 ? 0 : -ahead)] += bytes;
}

std::vector<uint64_t> IterationBytes::from(uint64_t first, size_t count) const {
  std::vector<uint64_t> list(count, 0);
  for (size_t i = 0; i < count; ++i) {
    const uint64_t iteration = first + i;
    if (iteration >= first_ && iteration - first_ < bytes_.size()) {
      list[i] = bytes_[iteration - first_];
    }
  }
  return list;
}

void FrameQueue::startBusy() {
  if (std::exchange(busy_, true)) return;
  busy_since_ = Clock::now();
}

void FrameQueue::stopBusy() {
  if (!std::exchange(busy_, false)) return;
  counters_.seconds += std::chrono::duration<double>(Clock::now() - busy_since_).count();
}

LinkCounters FrameQueue::counters() const {
  LinkCounters counters = counters_;
  if (busy_) counters.seconds += std::chrono::duration<double>(Clock::now() - busy_since_).count();
  return counters;
}

void FrameQueue::push(OutFrame frame) {
  startBusy();
  if (relayed(frame.header)) {
    relay_bytes_ += frame.header.payload_bytes;
    counters_.relay_peak_bytes = std::max(counters_.relay_peak_bytes, relay_bytes_);
  }
  auto& entry = *flows_.try_emplace(FlowKey::of(frame.header)).first;
  Flow& flow = entry.second;
  if (!std::exchange(flow.listed, true)) {
    flow.credit_bytes = kTurnBytes;
    fresh_.push_back(&entry);
  }
  flow.frames.push_back(std::move(frame));
  ++waiting_;
}

void FrameQueue::pushControl(OutFrame frame) {
  startBusy();
  control_.push_back(std::move(frame));
}

// A flow that sent nothing for a whole round leaves the list.
void FrameQueue::retire(Flows::value_type* entry) {
  entry->second.listed = false;
  if (flows_.size() > kIdleFlows) flows_.erase(flows_.find(entry->first));
}

// The flow whose turn it is, with credit for its first frame; nullptr if none has a frame.
FrameQueue::Flows::value_type* FrameQueue::nextFlow() {
  while (waiting_ > 0) {
    Turns& list = fresh_.empty() ? turns_ : fresh_;
    auto* const entry = list.front();
    Flow& flow = entry->second;
    if (!flow.frames.empty()) {
      const size_t cost = sizeOf(flow.frames.front().header);
      if (flow.credit_bytes >= cost) {
        flow.credit_bytes -= cost;
        return entry;
      }
      flow.credit_bytes += kTurnBytes;
    }
    const bool idle = flow.frames.empty() && &list == &turns_;
    list.pop_front();
    if (idle) {
      retire(entry);
    } else {
      turns_.push_back(entry);
    }
  }
  return nullptr;
}

bool FrameQueue::takeNext() {
  if (!control_.empty()) {
    ready_.push_back(std::move(control_.front()));
    control_.pop_front();
  } else if (auto* const entry = nextFlow()) {
    Flow& flow = entry->second;
    ready_.push_back(std::move(flow.frames.front()));
    flow.frames.pop_front();
    --waiting_;
  } else {
    return false;
  }
  OutFrame& frame = ready_.back();
  if (!frame.owned.empty()) frame.payload = frame.owned.data();
  ready_bytes_ += sizeOf(frame.header);
  return true;
}

int FrameQueue::gather(iovec* parts, size_t batch_bytes) {
  while (ready_bytes_ - written_ < batch_bytes && ready_.size() < kBatchFrames && takeNext()) {
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
  if (payload) iterations_.add(header.iteration, header.payload_bytes);
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
  for (Turns* list : {&fresh_, &turns_}) {
    std::erase_if(*list, [&](const Flows::value_type* entry) {
      if (entry->first.channel != channel || entry->first.source != rank_) return false;
      for (const OutFrame& frame : entry->second.frames) dropped(frame.header);
      waiting_ -= entry->second.frames.size();
      flows_.erase(flows_.find(entry->first));
      return true;
    });
  }
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
  fresh_.clear();
  turns_.clear();
  flows_.clear();
  waiting_ = 0;
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
