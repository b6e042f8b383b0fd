#include "plan/ring_schedules.h"

#include <algorithm>
#include <functional>

#include "plan/schedule_parts.h"

namespace topoopt {
namespace {

// Chunks of a reduce-scatter go around in batches. A slot is free only when its chunk was sent on,
// so members with full slots could deadlock around the ring. Batches of at most half the slots
// prevent that: the send that frees a slot always precedes the receive that needs it. So the
// earliest unfinished receive of the ring can always proceed.
constexpr size_t kBatch = kSlots / 2;

// A ring from the view of one member's server. `segments` has the elements of each position: one
// piece, or one per member of its server, the leader's first.
class RingView {
 public:
  RingView(const GroupLayout& layout, const plan::Ring& ring, int rank, size_t element_bytes,
           std::vector<std::vector<Extent>> segments, size_t slots)
      : size(static_cast<int>(ring.servers.size())),
        leader(layout.leaderOf(rank)),
        position(static_cast<int>(std::find(ring.servers.begin(), ring.servers.end(), leader) -
                                  ring.servers.begin())),
        next(ring.servers[(position + 1) % size]),
        previous(ring.servers[(position + size - 1) % size]),
        others(layout.othersOf(leader)),
        element_bytes_(element_bytes),
        segments_(std::move(segments)) {
    size_t largest = 0;
    size_t pieces = 0;
    for (const auto& segment : segments_) {
      pieces = std::max(pieces, segment.size());
      for (const Extent& piece : segment) largest = std::max(largest, piece.count);
    }
    chunks_per_piece_ = chunkCount(largest * element_bytes, slots);
    largest_chunk_bytes = divide({0, largest}, chunks_per_piece_, 0).count * element_bytes;
    chunks = pieces * chunks_per_piece_;
  }

  const int size;
  const int leader;
  const int position;
  const int next;
  const int previous;
  const std::vector<int>& others;  // the server's other members
  size_t chunks;                   // per segment; some may be empty
  size_t largest_chunk_bytes;

  int wrap(int segment) const { return ((segment % size) + size) % size; }

  Range chunk(Buffer buffer, int segment, size_t index) const {
    const auto& pieces = segments_[wrap(segment)];
    const size_t piece = index / chunks_per_piece_;
    if (piece >= pieces.size()) return {};
    const Extent extent = divide(pieces[piece], chunks_per_piece_, index % chunks_per_piece_);
    return {buffer, extent.first * element_bytes_, extent.count * element_bytes_};
  }

  // The member of this server that owns the chunk of its segment.
  int owner(size_t index) const {
    const size_t piece = index / chunks_per_piece_;
    return piece == 0 ? leader : others[piece - 1];
  }

 private:
  const size_t element_bytes_;
  const std::vector<std::vector<Extent>> segments_;
  size_t chunks_per_piece_;
};

// The lanes of a ring: around it, from the server's members to the leader, and back.
struct RingLanes {
  RingLanes(Schedule& schedule, const RingView& ring, int rank, size_t index, size_t rings) {
    if (rank == ring.leader && ring.size > 1) {
      around = addLane(schedule, index, static_cast<int>(index));
    }
    if (ring.others.empty()) return;
    inwards = addLane(schedule, rings + index, kInsideServer);
    outwards = addLane(schedule, 2 * rings + index, kInsideServer);
  }

  int around = -1;
  int inwards = -1;
  int outwards = -1;
};

// The state of each ring's builder below.
struct RingBuilder {
  Schedule& schedule;
  const RingView& ring;
  const RingLanes lanes;
  const int rank;

  // Calls visit(segment, chunk) for all chunks, by segment in descending order from `first`.
  void visit(int first, const std::function<void(int, size_t)>& visit) const {
    for (int k = 0; k < ring.size; ++k) {
      for (size_t c = 0; c < ring.chunks; ++c) visit(ring.wrap(first - k), c);
    }
  }

  void receive(int lane, int peer, Range into) const {
    Receive receive;
    receive.peer = peer;
    receive.into = into;
    addReceive(schedule, lane, receive);
  }
};

// The receive that completes each chunk here; none if it is there from the start.
class Ready {
 public:
  explicit Ready(const RingView& ring)
      : chunks_(ring.chunks), steps_(static_cast<size_t>(ring.size) * ring.chunks) {}
  StepRef& at(int segment, size_t chunk) {
    return steps_[static_cast<size_t>(segment) * chunks_ + chunk];
  }

 private:
  const size_t chunks_;
  std::vector<StepRef> steps_;
};

// ---- all_reduce --------------------------------------------------------------------------------

// The data of the server's other members, in the order in which the ring needs it.
void addLocalParts(const RingBuilder& b, Ready& ready) {
  Slots slots(b.schedule, kSlots, b.ring.largest_chunk_bytes);
  b.visit(b.ring.position, [&](int segment, size_t c) {
    const Range data = b.ring.chunk(Buffer::kInput, segment, c);
    if (data.bytes == 0) return;
    for (const int other : b.ring.others) {
      Receive receive;
      receive.peer = other;
      const Slots::Slot slot = slots.take(receive, data.bytes);
      receive.into = slot.range;
      receive.reduce = true;
      receive.target = data;
      receive.operand = slot.range;
      receive.turn_after = ready.at(segment, c);
      ready.at(segment, c) = addReceive(b.schedule, b.lanes.inwards, receive);
      slots.filledBy(slot.number, ready.at(segment, c));
    }
  });
}

void allReduceAround(const RingBuilder& b, Ready& ready) {
  Slots slots(b.schedule, kSlots, b.ring.largest_chunk_bytes);
  const int steps = b.ring.size - 1;
  for (int step = 0; step < 2 * steps; ++step) {
    const bool reducing = step < steps;
    const int sent =
        b.ring.wrap(reducing ? b.ring.position - step : b.ring.position + 1 - (step - steps));
    const int taken = b.ring.wrap(sent - 1);
    for (size_t c = 0; c < b.ring.chunks; ++c) {
      const Range out = b.ring.chunk(Buffer::kInput, sent, c);
      if (out.bytes > 0) {
        addSend(b.schedule, b.lanes.around, b.ring.next, out, ready.at(sent, c));
      }
      const Range data = b.ring.chunk(Buffer::kInput, taken, c);
      if (data.bytes == 0) continue;
      Receive receive;
      receive.peer = b.ring.previous;
      receive.into = data;
      Slots::Slot slot{};
      if (reducing) {
        slot = slots.take(receive, data.bytes);
        receive.into = slot.range;
        receive.reduce = true;
        receive.target = data;
        receive.operand = slot.range;
        receive.turn_after = ready.at(taken, c);
      }
      ready.at(taken, c) = addReceive(b.schedule, b.lanes.around, receive);
      if (reducing) slots.filledBy(slot.number, ready.at(taken, c));
    }
  }
}

void allReduceRing(const RingBuilder& b) {
  const bool leads = b.rank == b.ring.leader;
  Ready ready(b.ring);
  if (leads && !b.ring.others.empty()) addLocalParts(b, ready);
  if (leads) allReduceAround(b, ready);
  if (b.ring.others.empty()) return;
  if (!leads) {
    b.visit(b.ring.position, [&](int segment, size_t c) {
      const Range data = b.ring.chunk(Buffer::kInput, segment, c);
      if (data.bytes > 0) addSend(b.schedule, b.lanes.inwards, b.ring.leader, data, {});
    });
  }
  // Sends results in order of completion.
  b.visit(b.ring.position + 1, [&](int segment, size_t c) {
    const Range data = b.ring.chunk(Buffer::kInput, segment, c);
    if (data.bytes == 0) return;
    if (!leads) return b.receive(b.lanes.outwards, b.ring.leader, data);
    for (const int other : b.ring.others) {
      addSend(b.schedule, b.lanes.outwards, other, data, ready.at(segment, c));
    }
  });
}

// ---- all_gather --------------------------------------------------------------------------------

void allGatherAround(const RingBuilder& b, Ready& ready) {
  for (int step = 0; step < b.ring.size - 1; ++step) {
    const int sent = b.ring.wrap(b.ring.position - step);
    const int taken = b.ring.wrap(sent - 1);
    for (size_t c = 0; c < b.ring.chunks; ++c) {
      const Range out = b.ring.chunk(Buffer::kOutput, sent, c);
      if (out.bytes > 0) {
        addSend(b.schedule, b.lanes.around, b.ring.next, out, ready.at(sent, c));
      }
      const Range data = b.ring.chunk(Buffer::kOutput, taken, c);
      if (data.bytes == 0) continue;
      Receive receive;
      receive.peer = b.ring.previous;
      receive.into = data;
      ready.at(taken, c) = addReceive(b.schedule, b.lanes.around, receive);
    }
  }
}

void allGatherRing(const RingBuilder& b) {
  const bool leads = b.rank == b.ring.leader;
  Ready ready(b.ring);
  for (size_t c = 0; c < b.ring.chunks; ++c) {
    const Range data = b.ring.chunk(Buffer::kOutput, b.ring.position, c);
    if (data.bytes == 0) continue;
    const int owner = b.ring.owner(c);
    if (leads && owner != b.rank) {
      Receive receive;
      receive.peer = owner;
      receive.into = data;
      ready.at(b.ring.position, c) = addReceive(b.schedule, b.lanes.inwards, receive);
    } else if (!leads && owner == b.rank) {
      addSend(b.schedule, b.lanes.inwards, b.ring.leader, data, {});
    }
  }
  if (leads) allGatherAround(b, ready);
  if (b.ring.others.empty()) return;
  b.visit(b.ring.position, [&](int segment, size_t c) {
    const Range data = b.ring.chunk(Buffer::kOutput, segment, c);
    if (data.bytes == 0) return;
    const int owner = segment == b.ring.position ? b.ring.owner(c) : -1;
    if (!leads) {
      if (owner != b.rank) b.receive(b.lanes.outwards, b.ring.leader, data);
      return;
    }
    for (const int other : b.ring.others) {
      if (owner != other) {
        addSend(b.schedule, b.lanes.outwards, other, data, ready.at(segment, c));
      }
    }
  });
}

// ---- reduce_scatter ----------------------------------------------------------------------------

// Calls visit(step, chunk): in step -1 a leader starts a chunk, in the last step it completes one
// for its server (the same step on a ring of one).
void visitReduceScatter(const RingView& ring, const std::function<void(int, size_t)>& visit) {
  // Equal batches: many chunks per link wait less for each other than few.
  const size_t batches = (ring.chunks + kBatch - 1) / kBatch;
  for (size_t batch = 0; batch < batches; ++batch) {
    const size_t first = ring.chunks * batch / batches;
    const size_t end = ring.chunks * (batch + 1) / batches;
    for (int step = -1; step < ring.size - 1; ++step) {
      for (size_t c = first; c < end; ++c) visit(step, c);
    }
  }
}

// `output_base` is the start of this member's block in kInput; kOutput holds only that block.
void reduceScatterLeader(const RingBuilder& b, size_t output_base) {
  const RingView& ring = b.ring;
  const size_t bytes = ring.largest_chunk_bytes;
  Slots around(b.schedule, ring.size > 1 ? kSlots : 0, bytes);
  Slots inwards(b.schedule, kSlots * ring.others.size(), bytes);
  visitReduceScatter(ring, [&](int step, size_t c) {
    const Range own = ring.chunk(Buffer::kInput, ring.position - step - 2, c);
    if (own.bytes == 0) return;
    const bool last = step == ring.size - 2;
    const bool mine = last && ring.owner(c) == b.rank;
    ChunkSum sum =
        mine ? ChunkSum(b.schedule, own, {Buffer::kOutput, own.offset - output_base, own.bytes})
             : ChunkSum(b.schedule, own);
    if (step >= 0) sum.add(b.lanes.around, ring.previous, around);
    for (const int other : ring.others) sum.add(b.lanes.inwards, other, inwards);
    if (mine) return;
    if (last) {
      sum.send(b.lanes.outwards, ring.owner(c));
    } else {
      sum.send(b.lanes.around, ring.next);
    }
  });
}

void reduceScatterRing(const RingBuilder& b, size_t output_base) {
  const RingView& ring = b.ring;
  if (b.rank == ring.leader) return reduceScatterLeader(b, output_base);
  visitReduceScatter(ring, [&](int step, size_t c) {
    const Range own = ring.chunk(Buffer::kInput, ring.position - step - 2, c);
    if (own.bytes == 0) return;
    addSend(b.schedule, b.lanes.inwards, ring.leader, own, {});
    const bool last = step == ring.size - 2;
    if (!last || ring.owner(c) != b.rank) return;
    b.receive(b.lanes.outwards, ring.leader,
              {Buffer::kOutput, own.offset - output_base, own.bytes});
  });
}

// Ring `index`: its part of the blocks of every server's members, by position.
std::vector<std::vector<Extent>> blockSegments(const GroupLayout& layout,
                                               const std::vector<plan::Ring>& rings, size_t index,
                                               const std::vector<size_t>& counts) {
  const std::vector<size_t> starts = blockStarts(counts);
  std::vector<std::vector<Extent>> segments;
  for (const int leader : rings[index].servers) {
    std::vector<int> members = {leader};
    const std::vector<int>& others = layout.othersOf(leader);
    members.insert(members.end(), others.begin(), others.end());
    std::vector<Extent>& pieces = segments.emplace_back();
    for (const int member : members) {
      Extent part = divideByShare(counts[member], rings)[index];
      part.first += starts[member];
      pieces.push_back(part);
    }
  }
  return segments;
}

}  // namespace

std::vector<plan::Ring> ringsInUse(const GroupLayout& layout, Rings rings) {
  if (rings == Rings::kAll) return layout.rings();
  return {{layout.rings()[0].servers, 1.0}};
}

Schedule allReduceSchedule(const GroupLayout& layout, Rings in_use, int rank, size_t count,
                           size_t element_bytes) {
  Schedule schedule;
  const std::vector<plan::Ring> rings = ringsInUse(layout, in_use);
  const std::vector<Extent> parts = divideByShare(count, rings);
  const size_t slots = rings.size() * kSlots * (layout.mostOthers() > 0 ? 2 : 1);
  for (size_t r = 0; r < rings.size(); ++r) {
    const size_t size = rings[r].servers.size();
    std::vector<std::vector<Extent>> segments;
    for (size_t s = 0; s < size; ++s) segments.push_back({divide(parts[r], size, s)});
    const RingView ring(layout, rings[r], rank, element_bytes, std::move(segments), slots);
    allReduceRing({schedule, ring, RingLanes(schedule, ring, rank, r, rings.size()), rank});
  }
  return schedule;
}

Schedule allGatherSchedule(const GroupLayout& layout, Rings in_use, int rank,
                           const std::vector<size_t>& counts, size_t element_bytes) {
  Schedule schedule;
  const std::vector<plan::Ring> rings = ringsInUse(layout, in_use);
  for (size_t r = 0; r < rings.size(); ++r) {
    const RingView ring(layout, rings[r], rank, element_bytes,
                        blockSegments(layout, rings, r, counts), 0);
    allGatherRing({schedule, ring, RingLanes(schedule, ring, rank, r, rings.size()), rank});
  }
  return schedule;
}

Schedule reduceScatterSchedule(const GroupLayout& layout, Rings in_use, int rank,
                               const std::vector<size_t>& counts, size_t element_bytes) {
  Schedule schedule;
  const std::vector<plan::Ring> rings = ringsInUse(layout, in_use);
  const size_t output_base = blockStarts(counts)[rank] * element_bytes;
  const size_t slots = rings.size() * kSlots * (1 + layout.mostOthers());
  for (size_t r = 0; r < rings.size(); ++r) {
    const RingView ring(layout, rings[r], rank, element_bytes,
                        blockSegments(layout, rings, r, counts), slots);
    reduceScatterRing({schedule, ring, RingLanes(schedule, ring, rank, r, rings.size()), rank},
                      output_base);
  }
  return schedule;
}

}  // namespace topoopt
