#include "plan/schedule.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>

namespace topoopt {
namespace {

constexpr size_t kMinChunkBytes = 64 << 10;   // smaller ones cost more in headers than they overlap
constexpr size_t kMaxChunkBytes = 512 << 10;  // bounds the scratch memory
constexpr size_t kWantedChunks = 8;           // enough for consecutive steps to overlap
constexpr int kSlots = 8;                     // scratch chunks per ring

size_t divideUp(size_t a, size_t b) { return (a + b - 1) / b; }

// All members compute the same number from the largest segment, so chunks match on both ends.
size_t chunkCount(size_t largest_segment_bytes) {
  return std::max({std::min(divideUp(largest_segment_bytes, kMinChunkBytes), kWantedChunks),
                   divideUp(largest_segment_bytes, kMaxChunkBytes), size_t{1}});
}

int positionOf(const RingOrder& ring, int rank) {
  const auto at = std::find(ring.order.begin(), ring.order.end(), rank);
  if (at == ring.order.end()) throw std::invalid_argument("rank is not on the ring");
  return static_cast<int>(at - ring.order.begin());
}

// This member's place on one ring, and the elements of each ring segment (index = ring position).
struct RingView {
  int size;
  int position;
  int next;
  int previous;
  size_t element_bytes;
  size_t chunks;
  std::vector<Extent> segments;

  RingView(const RingOrder& ring, int rank, size_t element_bytes, std::vector<Extent> segments)
      : size(static_cast<int>(ring.order.size())),
        position(positionOf(ring, rank)),
        next(ring.order[(position + 1) % size]),
        previous(ring.order[(position + size - 1) % size]),
        element_bytes(element_bytes),
        segments(std::move(segments)) {
    size_t largest = 0;
    for (const Extent& segment : this->segments) largest = std::max(largest, segment.count);
    chunks = chunkCount(largest * element_bytes);
  }

  int wrap(int segment) const { return ((segment % size) + size) % size; }

  Range chunk(Buffer buffer, int segment, size_t index) const {
    const Extent extent = divide(segments[wrap(segment)], chunks, index);
    return {buffer, extent.first * element_bytes, extent.count * element_bytes};
  }

  size_t largestChunkBytes() const {
    size_t largest = 0;
    for (const Extent& s : segments) largest = std::max(largest, divide(s, chunks, 0).count);
    return largest * element_bytes;
  }
};

// Scratch chunks of one lane, used in turn. A slot is free again when the receive that filled it is
// reduced, and, if it was sent on from there, when that send is complete.
class Slots {
 public:
  Slots(Schedule& schedule, size_t slot_bytes) : base_(schedule.scratch_bytes), bytes_(slot_bytes) {
    schedule.scratch_bytes += kSlots * slot_bytes;
  }

  // Gives receive number `index` of the lane the next slot.
  Range take(Receive& receive, size_t bytes, int index) {
    User& user = users_[turn_];
    receive.after = user.receive;
    receive.after_send = user.send;
    user = {index, -1};
    current_ = turn_;
    turn_ = (turn_ + 1) % kSlots;
    return {Buffer::kScratch, base_ + current_ * bytes_, bytes};
  }

  void sentBy(int send) { users_[current_].send = send; }

 private:
  struct User {
    int receive = -1;
    int send = -1;
  };
  size_t base_;
  size_t bytes_;
  int turn_ = 0;
  int current_ = 0;
  User users_[kSlots];
};

int lastIndex(const auto& list) { return static_cast<int>(list.size()) - 1; }

Receive receiveOf(int peer, Range into) {
  Receive receive;
  receive.peer = peer;
  receive.into = into;
  return receive;
}

void addSend(Lane& lane, int peer, Range from, int after) {
  if (from.bytes > 0) lane.sends.push_back({peer, from, after});
}

Lane allReduceLane(Schedule& schedule, const RingView& ring) {
  Lane lane;
  Slots slots(schedule, ring.largestChunkBytes());
  const int steps = ring.size - 1;
  std::vector<int> arrived(ring.chunks, -1);  // receive of the previous step, per chunk
  for (int step = 0; step < 2 * steps; ++step) {
    const bool reducing = step < steps;
    const int sent = reducing ? ring.position - step : ring.position + 1 - (step - steps);
    for (size_t c = 0; c < ring.chunks; ++c) {
      addSend(lane, ring.next, ring.chunk(Buffer::kInput, sent, c), arrived[c]);
      const Range data = ring.chunk(Buffer::kInput, sent - 1, c);
      if (data.bytes == 0) continue;
      Receive receive = receiveOf(ring.previous, data);
      const int index = static_cast<int>(lane.receives.size());
      if (reducing) {
        receive.into = slots.take(receive, data.bytes, index);
        receive.reduce = true;
        receive.target = data;
        receive.operand = receive.into;
      }
      lane.receives.push_back(receive);
      arrived[c] = index;
    }
  }
  return lane;
}

Lane allGatherLane(const RingView& ring) {
  Lane lane;
  std::vector<int> arrived(ring.chunks, -1);
  for (int step = 0; step < ring.size - 1; ++step) {
    for (size_t c = 0; c < ring.chunks; ++c) {
      addSend(lane, ring.next, ring.chunk(Buffer::kOutput, ring.position - step, c), arrived[c]);
      const Range data = ring.chunk(Buffer::kOutput, ring.position - step - 1, c);
      if (data.bytes == 0) continue;
      lane.receives.push_back(receiveOf(ring.previous, data));
      arrived[c] = lastIndex(lane.receives);
    }
  }
  return lane;
}

// Chunks go around in batches. A slot is only free when its chunk has been sent on, so if all
// chunks took a step together, a ring of members with full slots could wait for each other for
// ever. With batches no larger than the slots, the send that frees a slot never lies behind the
// receive that waits for it, and the earliest unfinished receive of the whole ring can always
// proceed.
constexpr size_t kBatch = kSlots / 2;

// `output_base` is where this member's block starts in kInput: kOutput holds that block alone.
Lane reduceScatterLane(Schedule& schedule, const RingView& ring, size_t output_base) {
  Lane lane;
  Slots slots(schedule, ring.largestChunkBytes());
  const auto receiveChunk = [&](int step, size_t c) {
    const Range own = ring.chunk(Buffer::kInput, ring.position - step - 2, c);
    if (own.bytes == 0) return;
    const bool last = step == ring.size - 2;
    Receive receive = receiveOf(ring.previous, own);
    const int index = static_cast<int>(lane.receives.size());
    receive.into = last ? Range{Buffer::kOutput, own.offset - output_base, own.bytes}
                        : slots.take(receive, own.bytes, index);
    receive.reduce = true;
    receive.target = receive.into;
    receive.operand = own;
    lane.receives.push_back(receive);
    if (!last) {
      addSend(lane, ring.next, receive.into, index);
      slots.sentBy(lastIndex(lane.sends));
    }
  };
  for (size_t first = 0; first < ring.chunks; first += kBatch) {
    const size_t end = std::min(first + kBatch, ring.chunks);
    for (size_t c = first; c < end; ++c) {
      addSend(lane, ring.next, ring.chunk(Buffer::kInput, ring.position - 1, c), -1);
    }
    for (int step = 0; step < ring.size - 1; ++step) {
      for (size_t c = first; c < end; ++c) receiveChunk(step, c);
    }
  }
  return lane;
}

// A chain view: one "segment" that is the whole part of this ring.
RingView chainView(const RingOrder& ring, int rank, Extent part, size_t element_bytes) {
  return RingView(ring, rank, element_bytes, std::vector<Extent>(ring.order.size(), part));
}

Lane broadcastLane(const RingView& ring, int from_root) {
  Lane lane;
  for (size_t c = 0; c < ring.chunks; ++c) {
    const Range data = ring.chunk(Buffer::kInput, 0, c);
    if (data.bytes == 0) continue;
    if (from_root > 0) lane.receives.push_back(receiveOf(ring.previous, data));
    if (from_root < ring.size - 1) {
      addSend(lane, ring.next, data, from_root > 0 ? lastIndex(lane.receives) : -1);
    }
  }
  return lane;
}

// `from_start` counts along the chain that starts behind the root and ends at it.
Lane reduceLane(Schedule& schedule, const RingView& ring, int from_start) {
  Lane lane;
  const bool root = from_start == ring.size - 1;
  Slots slots(schedule, from_start > 0 && !root ? ring.largestChunkBytes() : 0);
  for (size_t c = 0; c < ring.chunks; ++c) {
    const Range own = ring.chunk(Buffer::kInput, 0, c);
    if (own.bytes == 0) continue;
    if (from_start == 0) {
      addSend(lane, ring.next, own, -1);
      continue;
    }
    Receive receive = receiveOf(ring.previous, own);
    const int index = static_cast<int>(lane.receives.size());
    receive.into = root ? Range{Buffer::kOutput, own.offset, own.bytes}
                        : slots.take(receive, own.bytes, index);
    receive.reduce = true;
    receive.target = receive.into;
    receive.operand = own;
    lane.receives.push_back(receive);
    if (!root) {
      addSend(lane, ring.next, receive.into, index);
      slots.sentBy(lastIndex(lane.sends));
    }
  }
  return lane;
}

// Blocks of `counts` elements lie one after the other; returns where block i starts.
std::vector<size_t> blockStarts(const std::vector<size_t>& counts) {
  std::vector<size_t> starts(counts.size(), 0);
  for (size_t i = 1; i < counts.size(); ++i) starts[i] = starts[i - 1] + counts[i - 1];
  return starts;
}

// For ring number `index`: its part of every member's block, by ring position.
std::vector<Extent> blockSegments(const std::vector<RingOrder>& rings, size_t index,
                                  const std::vector<size_t>& counts) {
  const std::vector<size_t> starts = blockStarts(counts);
  std::vector<Extent> segments;
  for (int member : rings[index].order) {
    Extent part = divideByShare(counts[member], rings)[index];
    part.first += starts[member];
    segments.push_back(part);
  }
  return segments;
}

template <typename MakeLane>
void addLanes(Schedule& schedule, const std::vector<RingOrder>& rings, MakeLane makeLane) {
  for (size_t r = 0; r < rings.size(); ++r) {
    if (rings[r].order.size() < 2) continue;
    Lane lane = makeLane(r);
    lane.stream = static_cast<uint32_t>(r);
    schedule.lanes.push_back(std::move(lane));
  }
}

}  // namespace

Extent divide(Extent whole, size_t parts, size_t index) {
  const size_t base = whole.count / parts;
  const size_t rest = whole.count % parts;
  return {whole.first + index * base + std::min(index, rest), base + (index < rest ? 1 : 0)};
}

std::vector<Extent> divideByShare(size_t count, const std::vector<RingOrder>& rings) {
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

Schedule allReduceSchedule(const std::vector<RingOrder>& rings, int rank, size_t count,
                           size_t element_bytes) {
  Schedule schedule;
  const std::vector<Extent> parts = divideByShare(count, rings);
  addLanes(schedule, rings, [&](size_t r) {
    const size_t size = rings[r].order.size();
    std::vector<Extent> segments;
    for (size_t s = 0; s < size; ++s) segments.push_back(divide(parts[r], size, s));
    return allReduceLane(schedule, RingView(rings[r], rank, element_bytes, std::move(segments)));
  });
  return schedule;
}

Schedule allGatherSchedule(const std::vector<RingOrder>& rings, int rank,
                           const std::vector<size_t>& counts, size_t element_bytes) {
  Schedule schedule;
  addLanes(schedule, rings, [&](size_t r) {
    return allGatherLane(RingView(rings[r], rank, element_bytes, blockSegments(rings, r, counts)));
  });
  return schedule;
}

Schedule reduceScatterSchedule(const std::vector<RingOrder>& rings, int rank,
                               const std::vector<size_t>& counts, size_t element_bytes) {
  Schedule schedule;
  const size_t output_base = blockStarts(counts)[rank] * element_bytes;
  addLanes(schedule, rings, [&](size_t r) {
    return reduceScatterLane(
        schedule, RingView(rings[r], rank, element_bytes, blockSegments(rings, r, counts)),
        output_base);
  });
  return schedule;
}

Schedule broadcastSchedule(const std::vector<RingOrder>& rings, int rank, int root, size_t count,
                           size_t element_bytes) {
  Schedule schedule;
  const std::vector<Extent> parts = divideByShare(count, rings);
  addLanes(schedule, rings, [&](size_t r) {
    const RingView ring = chainView(rings[r], rank, parts[r], element_bytes);
    return broadcastLane(ring, ring.wrap(ring.position - positionOf(rings[r], root)));
  });
  return schedule;
}

Schedule reduceSchedule(const std::vector<RingOrder>& rings, int rank, int root, size_t count,
                        size_t element_bytes) {
  Schedule schedule;
  const std::vector<Extent> parts = divideByShare(count, rings);
  addLanes(schedule, rings, [&](size_t r) {
    const RingView ring = chainView(rings[r], rank, parts[r], element_bytes);
    const int from_start = ring.wrap(ring.position - positionOf(rings[r], root) - 1);
    return reduceLane(schedule, ring, from_start);
  });
  return schedule;
}

Schedule exchangeSchedule(int rank, const std::vector<size_t>& send_bytes,
                          const std::vector<size_t>& receive_bytes) {
  Schedule schedule;
  Lane lane;
  const int size = static_cast<int>(send_bytes.size());
  const std::vector<size_t> send_starts = blockStarts(send_bytes);
  const std::vector<size_t> receive_starts = blockStarts(receive_bytes);
  for (int distance = 1; distance < size; ++distance) {
    const int target = (rank + distance) % size;
    const int source = (rank + size - distance) % size;
    addSend(lane, target, {Buffer::kInput, send_starts[target], send_bytes[target]}, -1);
    if (receive_bytes[source] > 0) {
      lane.receives.push_back(
          receiveOf(source, {Buffer::kOutput, receive_starts[source], receive_bytes[source]}));
    }
  }
  schedule.lanes.push_back(std::move(lane));
  return schedule;
}

}  // namespace topoopt
