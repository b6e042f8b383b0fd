#include "plan/schedule_parts.h"

#include <algorithm>
#include <cmath>

namespace topoopt {
namespace {

constexpr size_t kMinChunkBytes = 64 << 10;   // smaller ones cost more in headers than they overlap
constexpr size_t kMaxChunkBytes = 512 << 10;  // larger ones are not faster
constexpr size_t kWantedChunks = 8;           // so that consecutive steps overlap

size_t divideUp(size_t a, size_t b) { return (a + b - 1) / b; }

}  // namespace

size_t chunkCount(size_t largest_bytes, size_t slots) {
  const size_t most = std::min(kMaxChunkBytes, kScratchLimitBytes / std::max<size_t>(slots, 1));
  return std::max({std::min(divideUp(largest_bytes, kMinChunkBytes), kWantedChunks),
                   divideUp(largest_bytes, most), size_t{1}});
}

StepRef addReceive(Schedule& schedule, int lane, const Receive& receive) {
  auto& receives = schedule.lanes[lane].receives;
  const StepRef step{lane, static_cast<int>(receives.size())};
  receives.push_back(receive);
  if (const StepRef before = receive.turn_after; !before.none()) {
    schedule.lanes[before.lane].receives[before.index].turn_next = step;
  }
  if (const StepRef before = receive.turn_after_send; !before.none()) {
    schedule.lanes[before.lane].sends[before.index].turn_next = step;
  }
  return step;
}

StepRef addSend(Schedule& schedule, int lane, int peer, Range from, StepRef after) {
  auto& sends = schedule.lanes[lane].sends;
  const StepRef step{lane, static_cast<int>(sends.size())};
  sends.push_back({peer, from, after, {}});
  return step;
}

int addLane(Schedule& schedule, size_t stream, int part) {
  schedule.lanes.push_back({static_cast<uint32_t>(stream), part});
  return static_cast<int>(schedule.lanes.size()) - 1;
}

Slots::Slot Slots::take(Receive& receive, size_t bytes) {
  const size_t number = turn_;
  turn_ = (turn_ + 1) % users_.size();
  receive.after = users_[number].receive;
  receive.after_send = users_[number].send;
  return {number, {Buffer::kScratch, base_ + number * slot_bytes_, bytes}};
}

void ChunkSum::add(int lane, int peer, Slots& slots) {
  const bool first = last_.none();
  Receive receive;
  receive.peer = peer;
  receive.reduce = true;
  receive.turn_after = last_;
  Slots::Slot slot{};
  const bool in_slot = !first || !placed_;
  if (in_slot) slot = slots.take(receive, own_.bytes);
  receive.into = in_slot ? slot.range : place_;
  if (first) total_ = receive.into;
  receive.target = total_;
  receive.operand = first ? own_ : receive.into;
  last_ = addReceive(schedule_, lane, receive);
  if (in_slot) slots.filledBy(slot.number, last_);
  if (first && in_slot) {
    slots_ = &slots;
    slot_ = slot.number;
  }
}

void ChunkSum::send(int lane, int peer) {
  const StepRef sent = addSend(schedule_, lane, peer, total_, last_);
  if (slots_ != nullptr) slots_->sentBy(slot_, sent);
}

// ---- extents -----------------------------------------------------------------------------------

Extent divide(Extent whole, size_t parts, size_t index) {
  const size_t base = whole.count / parts;
  const size_t rest = whole.count % parts;
  return {whole.first + index * base + std::min(index, rest), base + (index < rest ? 1 : 0)};
}

std::vector<Extent> divideByShare(size_t count, const std::vector<plan::Ring>& rings) {
  std::vector<Extent> parts;
  double sum = 0;
  size_t first = 0;
  for (size_t r = 0; r < rings.size(); ++r) {
    sum += rings[r].share;
    const size_t end =
        r + 1 == rings.size()
            ? count
            : std::clamp<size_t>(std::llround(sum * static_cast<double>(count)), first, count);
    parts.push_back({first, end - first});
    first = end;
  }
  return parts;
}

std::vector<size_t> blockStarts(const std::vector<size_t>& counts) {
  std::vector<size_t> starts(counts.size(), 0);
  for (size_t i = 1; i < counts.size(); ++i) starts[i] = starts[i - 1] + counts[i - 1];
  return starts;
}

}  // namespace topoopt
