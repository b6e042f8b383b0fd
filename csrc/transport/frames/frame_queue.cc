#include "transport/frames/frame_queue.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <utility>

#include "transport/frames/zero_copy_sends.h"

namespace topoopt {
namespace {

constexpr size_t kBatchFrames = FrameQueue::kMaxParts / 2;
constexpr size_t kTurnBytes = 64 << 10;
// Idle flows that keep their queue for the next frame.
constexpr size_t kIdleFlows = 64;

// Kept payloads up to this size are copied: cheaper than delaying the message.
constexpr size_t kCopiedBytes = 8 << 10;

size_t sizeOf(const FrameHeader& header) { return sizeof header + header.payload_bytes; }

size_t turnOf(const FrameHeader& header) {
  return kTurnBytes * RouteName::sizeOf(header.route) / RouteName::kMeanSize;
}

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
    return;  // too old
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
    buffers_.addRelayed(frame.header);
    counters_.relay_peak_bytes = std::max(counters_.relay_peak_bytes, relay_bytes_);
  }
  auto& entry = *flows_.try_emplace(FlowKey::of(frame.header)).first;
  QueuedFlow& flow = entry.second;
  if (!std::exchange(flow.listed, true)) {
    flow.credit_bytes = turnOf(frame.header);
    fresh_.push_back(&entry);
  }
  flow.frames.push_back(std::move(frame));
  ++waiting_;
}

void FrameQueue::pushControl(OutFrame frame) {
  startBusy();
  control_.push_back(std::move(frame));
}

// Removes a flow that sent nothing for a whole round.
void FrameQueue::retire(Flows::value_type* entry) {
  entry->second.listed = false;
  if (flows_.size() > kIdleFlows) flows_.erase(flows_.find(entry->first));
}

// Returns the next flow, with credit for its first frame; nullptr if all are empty.
FrameQueue::Flows::value_type* FrameQueue::nextFlow() {
  while (waiting_ > 0) {
    Turns& list = fresh_.empty() ? turns_ : fresh_;
    auto* const entry = list.front();
    QueuedFlow& flow = entry->second;
    if (!flow.frames.empty()) {
      const size_t cost = sizeOf(flow.frames.front().header);
      if (flow.credit_bytes >= cost) {
        flow.credit_bytes -= cost;
        return entry;
      }
      flow.credit_bytes += turnOf(flow.frames.front().header);
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
    QueuedFlow& flow = entry->second;
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
  if (payload && relayed(header)) counters_.relayed_bytes += header.payload_bytes;
  waitsNoMore(header);
}

void FrameQueue::waitsNoMore(const FrameHeader& header) {
  if (header.type != FrameType::kData || !relayed(header)) return;
  relay_bytes_ -= header.payload_bytes;
  buffers_.removeRelayed(header);
}

void FrameQueue::wrote(size_t bytes) {
  written_ += bytes;
  written_bytes_ += bytes;
  while (!ready_.empty() && written_ >= sizeOf(ready_.front().header)) {
    OutFrame frame = std::move(ready_.front());
    written_ -= sizeOf(frame.header);
    ready_bytes_ -= sizeOf(frame.header);
    ready_.pop_front();
    account(frame.header);
    if (empty()) stopBusy();
    finishFrame(std::move(frame));
  }
}

// ---- kept frames -------------------------------------------------------------------------------

void FrameQueue::own(OutFrame& frame) {
  if (!frame.owned.empty() || frame.header.payload_bytes == 0) return;
  frame.owned = buffers_.take(frame.header.payload_bytes);
  std::memcpy(frame.owned.data(), frame.payload, frame.header.payload_bytes);
  frame.payload = frame.owned.data();
}

void FrameQueue::finishFrame(OutFrame frame) {
  const FrameHeader header = frame.header;
  const uint64_t end = written_bytes_ - written_;
  const std::shared_ptr<SendProgress> message = std::move(frame.message);
  if (keeps_ && header.type != FrameType::kLinkHello) {
    if (isFlooded(header.type) || isForOneLink(header.type)) {
      frame.owned = {};  // never resent: it is about the link, or travels otherwise
    } else if (message && header.payload_bytes > kCopiedBytes) {
      frame.message = message;
      ++message->kept_frames;
      ++kept_messages_;
    } else if (message) {
      own(frame);
    }
    kept_bytes_ += header.payload_bytes;
    kept_.push_back({std::move(frame), end});
  } else if (lent(header, end)) {
    if (message) {
      frame.message = message;
      ++message->kept_frames;
      ++kept_messages_;
    }
    kept_bytes_ += header.payload_bytes;
    kept_.push_back({std::move(frame), end});
  }
  if (!message) return;
  message->unsent_bytes -= header.payload_bytes;
  if (complete(*message) || message->unsent_bytes > 0 || !message->prompt) return;
  written_channels_.push_back(header.channel);
}

// Returns whether its memory is free and the sender was notified.
bool FrameQueue::complete(SendProgress& message) {
  if (message.unsent_bytes > 0 || message.kept_frames > 0) return false;
  if (message.done) std::exchange(message.done, nullptr)(nullptr);
  return true;
}

// Returns the message that no longer depends on this kept frame, if any.
std::shared_ptr<SendProgress> FrameQueue::freed(OutFrame& frame) {
  auto message = std::move(frame.message);
  if (message) {
    --message->kept_frames;
    --kept_messages_;
  }
  return message;
}

bool FrameQueue::lent(const FrameHeader& header, uint64_t end) const {
  return end > lent_from_ && header.payload_bytes >= ZeroCopySends::kLeastBytes;
}

void FrameQueue::lend(uint64_t from) {
  came_back_ = came_back_ || from > lent_from_;
  lent_from_ = from;
}

// Checks prompt messages that hurry() could not free, because the kernel may have copied them.
void FrameQueue::lookAtPrompt() {
  for (const KeptFrame& kept : kept_) {
    const auto& message = kept.frame.message;
    if (!message || !message->prompt || message->unsent_bytes > 0) continue;
    if (lent(kept.frame.header, kept.end)) return;
    const uint32_t channel = kept.frame.header.channel;
    if (std::ranges::count(written_channels_, channel) == 0) written_channels_.push_back(channel);
  }
}

void FrameQueue::unacknowledged(size_t bytes) {
  const uint64_t acknowledged =
      std::min(written_bytes_ - std::min<uint64_t>(bytes, written_bytes_), lent_from_);
  while (!kept_.empty() && kept_.front().end <= acknowledged) {
    KeptFrame kept = std::move(kept_.front());
    kept_.pop_front();
    ++kept_first_;
    kept_bytes_ -= kept.frame.header.payload_bytes;
    if (const auto message = freed(kept.frame)) complete(*message);
  }
  unacknowledged_frames_ = kept_.size();
  unacknowledged_bytes_ = kept_bytes_;
  if (std::exchange(came_back_, false)) lookAtPrompt();
}

void FrameQueue::hurry(uint32_t channel) {
  const auto hasten = [&](std::deque<OutFrame>& frames) {
    for (OutFrame& frame : frames) {
      if (frame.message && frame.header.channel == channel) frame.message->prompt = true;
    }
  };
  hasten(ready_);
  for (Turns* list : {&fresh_, &turns_}) {
    for (auto* const entry : *list) {
      if (entry->first.channel == channel) hasten(entry->second.frames);
    }
  }
  if (kept_messages_ == 0) return;
  std::vector<std::shared_ptr<SendProgress>> free;
  for (KeptFrame& kept : kept_) {
    if (!kept.frame.message || kept.frame.header.channel != channel) continue;
    kept.frame.message->prompt = true;
    if (lent(kept.frame.header, kept.end)) continue;
    own(kept.frame);
    free.push_back(freed(kept.frame));
  }
  for (const auto& message : free) complete(*message);
}

// Counts the first ready frames that the other end may have in part.
size_t FrameQueue::begunFrames(size_t begun) const {
  size_t frames = 0;
  for (size_t end = 0; frames < ready_.size() && end < written_ + begun; ++frames) {
    end += sizeOf(ready_[frames].header);
  }
  return frames;
}

FrameQueue::Kept FrameQueue::takeKept(size_t begun) {
  for (size_t frames = begunFrames(begun); frames > 0; --frames) {
    OutFrame first = std::move(ready_.front());
    ready_.pop_front();
    ready_bytes_ -= sizeOf(first.header);
    written_ = 0;
    account(first.header);
    finishFrame(std::move(first));
  }
  Kept taken{kept_first_, {}};
  std::vector<std::shared_ptr<SendProgress>> free;
  for (KeptFrame& kept : std::exchange(kept_, {})) {
    if (kept.frame.message) {
      own(kept.frame);
      free.push_back(freed(kept.frame));
    }
    taken.frames.push_back(std::move(kept.frame));
  }
  kept_first_ = 0;
  kept_bytes_ = 0;
  unacknowledged_frames_ = unacknowledged_bytes_ = 0;
  written_bytes_ = 0;
  for (const auto& message : free) complete(*message);
  return taken;
}

std::vector<OutFrame> FrameQueue::takeUnwritten() {
  while (takeNext()) {
  }
  std::vector<OutFrame> taken(std::make_move_iterator(ready_.begin()),
                              std::make_move_iterator(ready_.end()));
  clear();
  return taken;
}

// ---- dropped frames ----------------------------------------------------------------------------

bool FrameQueue::ownData(const OutFrame& frame, uint32_t channel) const {
  return frame.header.type == FrameType::kData && frame.header.channel == channel &&
         !relayed(frame.header);
}

void FrameQueue::dropOwn(uint32_t channel, size_t begun,
                         const std::function<void(const FrameHeader&)>& dropped) {
  for (KeptFrame& kept : kept_) {
    if (!ownData(kept.frame, channel) || !kept.frame.message) continue;
    own(kept.frame);
    freed(kept.frame);
  }
  for (Turns* list : {&fresh_, &turns_}) {
    std::erase_if(*list, [&](const Flows::value_type* entry) {
      if (entry->first.channel != channel || entry->first.source != rank_) return false;
      for (const OutFrame& frame : entry->second.frames) dropped(frame.header);
      waiting_ -= entry->second.frames.size();
      flows_.erase(flows_.find(entry->first));
      return true;
    });
  }
  const size_t begun_frames = begunFrames(begun);
  for (auto frame = ready_.begin(); frame != ready_.end();) {
    if (!ownData(*frame, channel)) {
      ++frame;
    } else if (frame < ready_.begin() + static_cast<ptrdiff_t>(begun_frames)) {
      frame->message.reset();
      own(*frame);
      ++frame;
    } else {
      dropped(frame->header);
      ready_bytes_ -= sizeOf(frame->header);
      frame = ready_.erase(frame);
    }
  }
  if (empty()) stopBusy();
}

void FrameQueue::dropData(size_t begun) {
  for (const auto& [key, flow] : flows_) {
    for (const OutFrame& frame : flow.frames) waitsNoMore(frame.header);
  }
  fresh_.clear();
  turns_.clear();
  flows_.clear();
  waiting_ = 0;
  const auto first = ready_.begin() + static_cast<ptrdiff_t>(begunFrames(begun));
  std::for_each(first, ready_.end(), [this](const OutFrame& frame) { waitsNoMore(frame.header); });
  ready_.erase(
      std::remove_if(first, ready_.end(),
                     [](const OutFrame& frame) { return frame.header.type == FrameType::kData; }),
      ready_.end());
  ready_bytes_ = 0;
  for (const OutFrame& frame : ready_) ready_bytes_ += sizeOf(frame.header);
  if (empty()) stopBusy();
}

void FrameQueue::clear() {
  written_ = 0;
  control_.clear();
  for (const OutFrame& frame : ready_) waitsNoMore(frame.header);
  ready_.clear();
  dropData();
}

}  // namespace topoopt
