#include "plan/torus_schedules.h"

#include <algorithm>
#include <functional>
#include <utility>
#include <vector>

#include "plan/schedule_parts.h"
#include "plan/torus_lines.h"

namespace topoopt {
namespace {

constexpr size_t kMessageBytes = 64 << 10;  // up to which small pieces travel together

int wrapped(int index, int size) { return ((index % size) + size) % size; }

// The members of one row or column as one of them sees it, in the order in which data moves.
struct Line {
  int size;
  int position;
  int next;
  int previous;

  // Of those lines the one with `member`.
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

// The first line scatters, then the second one reduces.
struct Lines {
  Line first;
  Line second;
};

// Of the part with that number, for a leader.
Lines linesOf(const plan::Grid& grid, int leader, size_t number) {
  const TorusLines lines = torusLines(grid, number);
  return {Line(lines.first, leader), Line(lines.second, leader)};
}

// How one part's elements are cut: into a segment per place of the first line, that into a piece
// per place of the second, and that into chunks. What travels along the first line are blocks of a
// segment: a chunk, or several pieces that are small.
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

  size_t chunks;  // of every piece; some may be empty
  size_t largest_chunk_bytes;
  size_t largest_block_bytes;
  std::vector<SegmentBlock> blocks;  // of every segment

  Range chunk(int segment, int piece, size_t chunk) const {
    return rangeOf(divide(pieceOf(segment, piece), chunks, chunk));
  }

  Range block(int segment, const SegmentBlock& block) const {
    if (chunks > 1) return chunk(segment, block.first, block.chunk);
    const Extent first = pieceOf(segment, block.first);
    const Extent last = pieceOf(segment, block.first + block.pieces - 1);
    return rangeOf({first.first, last.first + last.count - first.first});
  }

  // The block of a chunk, and the blocks in the order in which pieces down from `start` come to
  // them, or are all in them.
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

// One part as one member sees it.
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

  // Calls visit(segment, block) for segments down from `start`, and their blocks as the second line
  // needs them or completes them.
  void visit(int start, int count, bool complete, const Visit& visit) const {
    const int from = lines_.second.position + (complete ? 1 : 0);
    const std::vector<size_t> order = cut_.inOrder(from, complete);
    for (int k = 0; k < count; ++k) {
      const int segment = wrapped(start - k, lines_.first.size);
      for (const size_t block : order) visit(segment, block);
    }
  }

  // A receive that adds to `data` what comes, after what `turn` completes.
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

  // The server's other members hand their parts to the leader.
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

  // The first line reduces and scatters: this member has the sum of segment `own_` then.
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

  // The second line reduces that segment. Sums that lie in one block wait for each other, and the
  // first of them for the block: a step is waited for by one other.
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
    // The pieces of a block are complete one after the other: the last one is waited for.
    for (int k = 0; k < line.size; ++k) {
      const int piece = wrapped(line.position + 1 - k, line.size);
      for (size_t c = 0; c < cut_.chunks; ++c) {
        if (cut_.chunk(own_, piece, c).bytes == 0) continue;
        ready_[own_][cut_.blockOf(piece, c)] = piece_ready_[piece][c];
      }
    }
  }

  // The first line gathers the segments.
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

  // Results for the server's other members, in the order in which they are complete.
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
  const std::vector<int>& others_;  // the server's members beside the leader
  const Lines lines_;
  const TorusCut cut_;
  const int own_;                   // the segment that this member reduces
  std::vector<Steps> ready_;        // of each block of each segment: the receive that completes it
  std::vector<Steps> piece_ready_;  // of each chunk of each piece of `own_`
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
