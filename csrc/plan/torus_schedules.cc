#include "plan/torus_schedules.h"

#include <algorithm>
#include <functional>
#include <utility>
#include <vector>

#include "plan/schedule_parts.h"
#include "plan/torus_lines.h"

namespace topoopt {
namespace {

constexpr size_t kMessageBytes = 64 << 10;  // limit for combining small pieces

int wrapped(int index, int size) { return ((index % size) + size) % size; }

// A row or column from one member's view, in data order.
struct Line {
  int size;
  int position;
  int next;
  int previous;

  // Selects the line with `member`.
  Line(const std::vector<std::vector<int>>& lines, int member) {
    const std::vector<int>& members = *std::ranges::find_if(
        lines, [&](const auto& line) { return std::ranges::find(line, member) != line.end(); });
    size = static_cast<int>(members.size());
    position =
        static_cast<int>(std::find(members.begin(), members.end(), member) - members.begin());
    next = members[wrapped(position + 1, size)];
    previous = members[wrapped(position - 1, size)];
  }
};

// Scatter along the first line, reduce along the second.
struct Lines {
  Line first;
  Line second;
};

// The lines of part `number` for a leader.
Lines linesOf(const plan::Grid& grid, int leader, size_t number) {
  const TorusLines lines = torusLines(grid, number);
  return {Line(lines.first, leader), Line(lines.second, leader)};
}

// The division of a part: a segment per place of the first line, divided into a piece per place of
// the second, divided into chunks. The first line moves blocks of a segment: a chunk, or several
// small pieces.
class TorusCut {
 public:
  struct SegmentBlock {
    int first;
    int pieces;
    size_t chunk;
  };

  TorusCut(Extent whole, const Lines& lines, size_t element_bytes, size_t slots)
      : whole_(whole),
        segments_(lines.first.size),
        pieces_(lines.second.size),
        element_bytes_(element_bytes) {
    const size_t segment = divide({0, whole.count}, static_cast<size_t>(segments_), 0).count;
    const size_t piece = divide({0, segment}, static_cast<size_t>(pieces_), 0).count;
    chunks = chunkCount(piece * element_bytes, slots);
    largest_chunk_bytes = divide({0, piece}, chunks, 0).count * element_bytes;
    size_t together = 1;
    if (chunks == 1) {
      together = std::clamp<size_t>(kMessageBytes / std::max<size_t>(1, piece * element_bytes), 1,
                                    static_cast<size_t>(pieces_));
    }
    largest_block_bytes = together * largest_chunk_bytes;
    for (int first = 0; first < pieces_; first += static_cast<int>(together)) {
      const int count = std::min(static_cast<int>(together), pieces_ - first);
      for (size_t c = 0; c < chunks; ++c) blocks.push_back({first, count, c});
    }
  }

  size_t chunks;  // per piece; some may be empty
  size_t largest_chunk_bytes;
  size_t largest_block_bytes;
  std::vector<SegmentBlock> blocks;  // per segment

  Range chunk(int segment, int piece, size_t chunk) const {
    return rangeOf(divide(pieceOf(segment, piece), chunks, chunk));
  }

  Range block(int segment, const SegmentBlock& block) const {
    if (chunks > 1) return chunk(segment, block.first, block.chunk);
    const Extent first = pieceOf(segment, block.first);
    const Extent last = pieceOf(segment, block.first + block.pieces - 1);
    return rangeOf({first.first, last.first + last.count - first.first});
  }

  // The block of a chunk, and the blocks in the order in which descending pieces from `start` reach
  // or complete them.
  size_t blockOf(int piece, size_t chunk) const {
    const auto together = static_cast<size_t>(blocks[0].pieces);
    return static_cast<size_t>(piece) / together * chunks + chunk;
  }
  std::vector<size_t> inOrder(int start, bool whole) const {
    std::vector<size_t> order;
    std::vector<int> left;
    for (const SegmentBlock& block : blocks) left.push_back(whole ? block.pieces : 1);
    for (int k = 0; k < pieces_; ++k) {
      for (size_t c = 0; c < chunks; ++c) {
        const size_t number = blockOf(wrapped(start - k, pieces_), c);
        if (--left[number] == 0) order.push_back(number);
      }
    }
    return order;
  }

 private:
  Extent pieceOf(int segment, int piece) const {
    const Extent of_segment =
        divide(whole_, static_cast<size_t>(segments_), static_cast<size_t>(segment));
    return divide(of_segment, static_cast<size_t>(pieces_), static_cast<size_t>(piece));
  }
  Range rangeOf(Extent extent) const {
    return {Buffer::kInput, extent.first * element_bytes_, extent.count * element_bytes_};
  }

  const Extent whole_;
  const int segments_;
  const int pieces_;
  const size_t element_bytes_;
};

// One part from one member's view.
class TorusPartSchedule {
 public:
  TorusPartSchedule(Schedule& schedule, const GroupLayout& layout, int rank, const Lines& lines,
                    TorusCut cut)
      : schedule_(schedule),
        rank_(rank),
        leader_(layout.leaderOf(rank)),
        others_(layout.othersOf(leader_)),
        lines_(lines),
        cut_(std::move(cut)),
        own_(wrapped(lines.first.position + 1, lines.first.size)),
        ready_(static_cast<size_t>(lines.first.size), Steps(cut_.blocks.size())),
        piece_ready_(static_cast<size_t>(lines.second.size), Steps(cut_.chunks)) {}

  void add(size_t number, int part) {
    if (rank_ == leader_) {
      first_ = addLane(schedule_, 2 * number, part);
      second_ = addLane(schedule_, 2 * number + 1, part);
    }
    if (!others_.empty()) {
      inwards_ = addLane(schedule_, 2 * kTorusParts + number, kInsideServer);
      outwards_ = addLane(schedule_, 3 * kTorusParts + number, kInsideServer);
      addLocalParts();
    }
    if (rank_ == leader_) {
      scatter();
      reduceSecond();
      gather();
    }
    if (!others_.empty()) addResults();
  }

 private:
  using Steps = std::vector<StepRef>;
  using Visit = std::function<void(int, size_t)>;

  // Calls visit(segment, block) for descending segments from `start`, with blocks in the order in
  // which the second line needs or completes them.
  void visit(int start, int count, bool complete, const Visit& visit) const {
    const int from = lines_.second.position + (complete ? 1 : 0);
    const std::vector<size_t> order = cut_.inOrder(from, complete);
    for (int k = 0; k < count; ++k) {
      const int segment = wrapped(start - k, lines_.first.size);
      for (const size_t block : order) visit(segment, block);
    }
  }

  // Receives and adds to `data`, after `turn`.
  StepRef reduce(int lane, int peer, Range data, StepRef turn, Slots& slots) {
    Receive receive;
    receive.peer = peer;
    const Slots::Slot slot = slots.take(receive, data.bytes);
    receive.into = slot.range;
    receive.reduce = true;
    receive.target = data;
    receive.operand = slot.range;
    receive.turn_after = turn;
    const StepRef step = addReceive(schedule_, lane, receive);
    slots.filledBy(slot.number, step);
    return step;
  }

  StepRef receive(int lane, int peer, Range data) {
    Receive receive;
    receive.peer = peer;
    receive.into = data;
    return addReceive(schedule_, lane, receive);
  }

  // The server's other members send their data to the leader.
  void addLocalParts() {
    const bool leads = rank_ == leader_;
    Slots slots(schedule_, leads ? kSlots : 0, cut_.largest_block_bytes);
    visit(lines_.first.position, lines_.first.size, false, [&](int segment, size_t block) {
      const Range data = cut_.block(segment, cut_.blocks[block]);
      if (data.bytes == 0) return;
      if (!leads) {
        addSend(schedule_, inwards_, leader_, data, {});
        return;
      }
      StepRef& ready = ready_[segment][block];
      for (const int other : others_) ready = reduce(inwards_, other, data, ready, slots);
    });
  }

  // Scatters along the first line, which leaves the sum of segment `own_` here.
  void scatter() {
    Slots slots(schedule_, kSlots, cut_.largest_block_bytes);
    const Line& line = lines_.first;
    for (int step = 0; step < line.size - 1; ++step) {
      visit(line.position - step, 1, false, [&](int sent, size_t block) {
        const Range out = cut_.block(sent, cut_.blocks[block]);
        if (out.bytes > 0) addSend(schedule_, first_, line.next, out, ready_[sent][block]);
        const int taken = wrapped(sent - 1, line.size);
        const Range data = cut_.block(taken, cut_.blocks[block]);
        if (data.bytes == 0) return;
        StepRef& ready = ready_[taken][block];
        ready = reduce(first_, line.previous, data, ready, slots);
      });
    }
  }

  // Reduces that segment along the second line. Sums within a block are chained, and the first one
  // waits for the block, because a step supports only one dependent.
  void reduceSecond() {
    const Line& line = lines_.second;
    for (int piece = 0; piece < line.size; ++piece) {
      for (size_t c = 0; c < cut_.chunks; ++c) {
        piece_ready_[piece][c] = ready_[own_][cut_.blockOf(piece, c)];
      }
    }
    Slots slots(schedule_, kSlots, cut_.largest_chunk_bytes);
    Steps turns = ready_[own_];
    const int steps = line.size - 1;
    for (int step = 0; step < 2 * steps; ++step) {
      const bool reducing = step < steps;
      const int sent =
          wrapped(reducing ? line.position - step : line.position + 1 - (step - steps), line.size);
      const int taken = wrapped(sent - 1, line.size);
      for (size_t c = 0; c < cut_.chunks; ++c) {
        const Range out = cut_.chunk(own_, sent, c);
        if (out.bytes > 0) addSend(schedule_, second_, line.next, out, piece_ready_[sent][c]);
        const Range data = cut_.chunk(own_, taken, c);
        if (data.bytes == 0) continue;
        StepRef& turn = turns[cut_.blockOf(taken, c)];
        piece_ready_[taken][c] = reducing ? reduce(second_, line.previous, data, turn, slots)
                                          : receive(second_, line.previous, data);
        if (reducing) turn = piece_ready_[taken][c];
      }
    }
    // The pieces of a block complete in order, so wait for the last one.
    for (int k = 0; k < line.size; ++k) {
      const int piece = wrapped(line.position + 1 - k, line.size);
      for (size_t c = 0; c < cut_.chunks; ++c) {
        if (cut_.chunk(own_, piece, c).bytes == 0) continue;
        ready_[own_][cut_.blockOf(piece, c)] = piece_ready_[piece][c];
      }
    }
  }

  // Gathers segments along the first line.
  void gather() {
    const Line& line = lines_.first;
    for (int step = 0; step < line.size - 1; ++step) {
      visit(own_ - step, 1, true, [&](int sent, size_t block) {
        const Range out = cut_.block(sent, cut_.blocks[block]);
        if (out.bytes > 0) addSend(schedule_, first_, line.next, out, ready_[sent][block]);
        const int taken = wrapped(sent - 1, line.size);
        const Range data = cut_.block(taken, cut_.blocks[block]);
        if (data.bytes > 0) ready_[taken][block] = receive(first_, line.previous, data);
      });
    }
  }

  // Sends results to the server's other members in order of completion.
  void addResults() {
    visit(own_, lines_.first.size, true, [&](int segment, size_t block) {
      const Range data = cut_.block(segment, cut_.blocks[block]);
      if (data.bytes == 0) return;
      if (rank_ != leader_) {
        receive(outwards_, leader_, data);
        return;
      }
      for (const int other : others_) {
        addSend(schedule_, outwards_, other, data, ready_[segment][block]);
      }
    });
  }

  Schedule& schedule_;
  const int rank_;
  const int leader_;
  const std::vector<int>& others_;  // the server's other members
  const Lines lines_;
  const TorusCut cut_;
  const int own_;                   // segment reduced by this member
  std::vector<Steps> ready_;        // per segment and block: the completing receive
  std::vector<Steps> piece_ready_;  // per piece of `own_` and chunk
  int first_ = -1;
  int second_ = -1;
  int inwards_ = -1;
  int outwards_ = -1;
};

}  // namespace

Schedule torusAllReduceSchedule(const GroupLayout& layout, int rank, size_t count,
                                size_t element_bytes, int part) {
  Schedule schedule;
  const size_t slots = kTorusParts * kSlots * (layout.mostOthers() > 0 ? 3 : 2);
  for (size_t number = 0; number < kTorusParts; ++number) {
    const Lines lines = linesOf(layout.grid(), layout.leaderOf(rank), number);
    const Extent whole = divide({0, count}, kTorusParts, number);
    TorusPartSchedule(schedule, layout, rank, lines, TorusCut(whole, lines, element_bytes, slots))
        .add(number, part + static_cast<int>(number % 2));
  }
  return schedule;
}

}  // namespace topoopt
