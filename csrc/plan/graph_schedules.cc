#include "plan/graph_schedules.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <optional>
#include <tuple>
#include <utility>

#include "plan/graph_hops.h"
#include "plan/schedule_parts.h"

namespace topoopt {
namespace {

// Elements that go to, or come from, one member.
struct ShardBlock {
  int origin;  // place of its server in the plan
  int owner;   // member
  Extent extent;
};

enum class Where : uint8_t { kAround, kInwards, kOutwards };

// A step before it is added. Steps are added in the order of their keys, which is the same at both
// ends of a link; every step depends on earlier ones only, so no order of events deadlocks.
struct Item {
  enum class Kind : uint8_t { kSend, kReceive, kAddInPlace, kAddTo };

  // The key.
  int wave = 0;
  int phase = 0;
  int block = 0;
  int32_t atom = 0;
  int peer = -1;
  int32_t first = 0;

  Kind kind = Kind::kSend;
  Where where = Where::kAround;
  Range range{};     // sent, received into, or added to
  Range own{};       // kAddTo: the member's data
  size_t ready = 0;  // data that a send waits for; a receive completes it

  auto key() const { return std::tuple{wave, phase, block, atom, peer, first}; }
};

// Data that several steps fill and read.
struct Data {
  static constexpr size_t kNone = SIZE_MAX;

  size_t predecessor = kNone;  // used the same scratch memory in an earlier round
  int first_peer = -1;         // its parts come first, into the place of the sum
  StepRef received{};
  StepRef sent{};
};

class Builder {
 public:
  Builder(const GroupLayout& layout, int rank, size_t element_bytes, const GraphRun& run,
          std::vector<ShardBlock> blocks)
      : layout_(layout),
        rank_(rank),
        leader_(layout.leaderOf(rank)),
        place_(layout.placeOf(rank)),
        others_(layout.othersOf(leader_)),
        element_bytes_(element_bytes),
        run_(run),
        blocks_(std::move(blocks)) {
    data_.emplace_back();  // 0: complete from the start
  }

  // Sums every block at its origin: in place in kInput, or with `to_output` at its owner's kOutput,
  // where the block begins at element `output_first`.
  void scatter(const GatherPlan& plan, bool to_output, size_t output_first = 0) {
    const auto hops = hopsByOrigin(plan);
    by_block_.assign(blocks_.size() * run_.rounds, 0);
    window_ = std::min(run_.rounds, static_cast<size_t>(plan.steps) + 2);
    output_first_ = output_first;
    for (size_t b = 0; b < blocks_.size(); ++b) {
      const OriginHops origin(plan, hops[blocks_[b].origin]);
      for (size_t round = 0; round < run_.rounds; ++round) {
        const Turn turn = turnOf(plan, origin, b, round);
        if (leads()) {
          scatterAsLeader(turn, to_output);
        } else {
          scatterAsMember(turn, to_output);
        }
      }
    }
    waves_ = plan.steps + 2;
  }

  // Copies every block from its owner, in `buffer`, to all members.
  void gather(const GatherPlan& plan, Buffer buffer, bool owner_alone) {
    const auto hops = hopsByOrigin(plan);
    by_block_.resize(blocks_.size() * run_.rounds, 0);
    for (size_t b = 0; b < blocks_.size(); ++b) {
      const OriginHops origin(plan, hops[blocks_[b].origin]);
      for (size_t round = 0; round < run_.rounds; ++round) {
        gatherTurn(turnOf(plan, origin, b, round), buffer, owner_alone);
      }
    }
  }

  Schedule build() {
    std::sort(items_.begin(), items_.end(),
              [](const Item& a, const Item& b) { return a.key() < b.key(); });
    std::map<std::pair<Where, int>, std::pair<size_t, size_t>> needs;  // slots, bytes of one
    for (const Item& item : items_) {
      if (item.kind != Item::Kind::kAddInPlace && item.kind != Item::Kind::kAddTo) continue;
      auto& [slots, bytes] = needs[{item.where, item.peer}];
      slots = std::min(slots + 1, kSlots);
      bytes = std::max(bytes, item.range.bytes);
    }
    schedule_.scratch_bytes = scratch_;
    for (const auto& [lane, need] : needs) {
      slots_.emplace(lane, Slots(schedule_, need.first, need.second));
    }
    for (const Item& item : items_) add(item);
    return std::move(schedule_);
  }

 private:
  bool leads() const { return rank_ == leader_; }

  Extent extentOf(size_t block, size_t round) const {
    return divide(blocks_[block].extent, run_.rounds, round);
  }

  Range rangeOf(Buffer buffer, const Extent& extent, int32_t units, int32_t first,
                int32_t end) const {
    const auto at = [&](int32_t unit) { return elementAt(extent.count, unit, units); };
    return {buffer, (extent.first + at(first)) * element_bytes_,
            (at(end) - at(first)) * element_bytes_};
  }

  size_t newData() {
    data_.emplace_back();
    return data_.size() - 1;
  }

  void push(Item item, const Range& range) {
    if (range.bytes == 0) return;
    item.range = range;
    items_.push_back(item);
  }

  // One round of a block.
  struct Turn {
    const GatherPlan& plan;
    const OriginHops& hops;
    size_t block;
    size_t round;
    Extent extent;
    bool here;  // its origin is this server

    int wave(int step) const { return static_cast<int>(round) + step; }
  };
  // Sums of a server, by the start of their atoms: readiness, and place.
  using Sums = std::map<int32_t, std::pair<size_t, Range>>;

  Turn turnOf(const GatherPlan& plan, const OriginHops& hops, size_t b, size_t round) const {
    return {plan, hops, b, round, extentOf(b, round), blocks_[b].origin == place_};
  }

  Range inputOf(const Turn& turn, int32_t first, int32_t end) const {
    return rangeOf(Buffer::kInput, turn.extent, turn.plan.units, first, end);
  }

  void scatterAsMember(const Turn& turn, bool to_output) {
    Item item;
    item.block = static_cast<int>(turn.block);
    item.wave = turn.wave(0);
    item.where = Where::kInwards;
    item.peer = leader_;
    for (const auto& [first, end] : turn.hops.atoms(place_)) {
      item.atom = item.first = first;
      push(item, inputOf(turn, first, end));
    }
    if (!turn.here || !to_output || blocks_[turn.block].owner != rank_) return;
    item.where = Where::kOutwards;
    item.kind = Item::Kind::kReceive;
    item.ready = newData();
    for (const auto& [first, end] : turn.hops.atoms(place_)) {
      item.atom = item.first = first;
      push(item, outputOf(inputOf(turn, first, end)));
    }
  }

  Sums sumsOf(const Turn& turn, const std::vector<ShardHop>& hops, bool to_output) {
    Sums sums;
    for (const auto& [first, end] : turn.hops.atoms(place_)) {
      const auto adds = [&, first = first, end = end](const ShardHop& hop) {
        return hop.from == place_ && first <= hop.first && hop.first < end;
      };
      const Range own = inputOf(turn, first, end);
      if (own.bytes == 0 || (others_.empty() && std::none_of(hops.begin(), hops.end(), adds))) {
        sums[first] = {0, own};
      } else if (!to_output) {
        sums[first] = {newData(), own};
      } else if (turn.here && blocks_[turn.block].owner == rank_) {
        sums[first] = {newData(), outputOf(own)};
      } else {
        sums[first] = scratchFor(turn.block, turn.round, first, own.bytes);
      }
    }
    // All of an in-place sum at its origin is complete with its last receive.
    if (turn.here && !to_output) {
      const size_t whole = newData();
      for (auto& [first, sum] : sums) sum.first = whole;
      by_block_[turn.block * run_.rounds + turn.round] = whole;
    }
    return sums;
  }

  void scatterAsLeader(const Turn& turn, bool to_output) {
    const std::vector<ShardHop> hops = turn.hops.scattering(place_);
    const Sums sums = sumsOf(turn, hops, to_output);
    Item item;
    item.block = static_cast<int>(turn.block);
    // Sends a part of the sum at item.atom, or adds to it.
    const auto addPart = [&](bool sends, int32_t first, int32_t end) {
      const auto& [data, place] = sums.at(item.atom);
      item.first = first;
      item.own = inputOf(turn, first, end);
      item.ready = data;
      item.kind = sends       ? Item::Kind::kSend
                  : to_output ? Item::Kind::kAddTo
                              : Item::Kind::kAddInPlace;
      const size_t before = item.own.offset - inputOf(turn, item.atom, item.atom).offset;
      push(item, {place.buffer, place.offset + before, item.own.bytes});
    };
    item.wave = turn.wave(0);
    item.where = Where::kInwards;
    for (const auto& [first, end] : turn.hops.atoms(place_)) {
      item.atom = first;
      for (const int other : others_) {
        item.peer = other;
        addPart(false, first, end);
      }
    }
    item.where = Where::kAround;
    for (const ShardHop& hop : hops) {
      const bool sends = hop.to == place_;
      item.wave = turn.wave(turn.plan.steps - hop.step);
      item.atom = turn.hops.atomOf(place_, hop.first);
      item.peer = layout_.leaders()[sends ? hop.from : hop.to];
      addPart(sends, hop.first, hop.end);
    }
    const int owner = blocks_[turn.block].owner;
    if (!turn.here || !to_output || owner == rank_) return;
    item.where = Where::kOutwards;
    item.peer = owner;
    item.wave = turn.wave(turn.plan.steps + 1);
    for (const auto& [first, end] : turn.hops.atoms(place_)) {
      item.atom = first;
      addPart(true, first, end);
    }
  }

  Range outputOf(const Range& input) const {
    return {Buffer::kOutput, input.offset - output_first_ * element_bytes_, input.bytes};
  }

  // Scratch memory for a sum, which rounds use in turn.
  std::pair<size_t, Range> scratchFor(size_t block, size_t round, int32_t atom, size_t bytes) {
    const auto [entry, added] = scratch_of_.try_emplace({block, atom, round % window_});
    Place& place = entry->second;
    if (added) {
      place.offset = scratch_;
      scratch_ += bytes + element_bytes_;  // parts of other rounds are at most one element larger
    }
    const size_t data = newData();
    data_[data].predecessor = std::exchange(place.data, data);
    return {data, {Buffer::kScratch, place.offset, bytes}};
  }

  void gatherTurn(const Turn& turn, Buffer buffer, bool owner_alone) {
    const int owner = blocks_[turn.block].owner;
    const OriginHops::Parts pieces =
        turn.here ? OriginHops::Parts{{0, turn.plan.units}} : turn.hops.pieces(place_);
    const auto range = [&](int32_t first, int32_t end) {
      return rangeOf(buffer, turn.extent, turn.plan.units, first, end);
    };
    Item item;
    item.phase = 1;
    item.block = static_cast<int>(turn.block);
    // The receives that complete the pieces here.
    std::map<int32_t, size_t> ready;
    for (const auto& [first, end] : pieces) ready[first] = newData();
    if (turn.here && leads()) ready[0] = by_block_[turn.block * run_.rounds + turn.round];
    item.wave = waves_ + turn.wave(0);
    if (turn.here && owner_alone && owner != leader_ && (leads() || owner == rank_)) {
      item.where = Where::kInwards;
      item.peer = leads() ? owner : leader_;
      if (leads()) {
        item.kind = Item::Kind::kReceive;
        item.ready = ready[0] = newData();
      }
      push(item, range(0, turn.plan.units));
    }
    if (leads()) {
      item.where = Where::kAround;
      for (const ShardHop& hop : turn.hops.gathering(place_)) {
        const bool receives = hop.to == place_;
        item.wave = waves_ + turn.wave(1 + hop.step);
        item.peer = layout_.leaders()[receives ? hop.from : hop.to];
        item.atom = item.first = hop.first;
        item.kind = receives ? Item::Kind::kReceive : Item::Kind::kSend;
        item.ready = ready.at(turn.here ? 0 : turn.hops.pieceOf(place_, hop.first));
        push(item, range(hop.first, hop.end));
      }
    }
    item.where = Where::kOutwards;
    item.wave = waves_ + turn.wave(2 + turn.plan.steps);
    item.kind = leads() ? Item::Kind::kSend : Item::Kind::kReceive;
    for (const auto& [first, end] : pieces) {
      item.atom = item.first = first;
      item.ready = ready.at(first);
      for (const int other : leads() ? others_ : std::vector<int>{rank_}) {
        if (turn.here && owner_alone && other == owner) continue;
        item.peer = leads() ? other : leader_;
        push(item, range(first, end));
      }
    }
  }

  int laneOf(const Item& item) {
    const auto [entry, added] = lanes_.try_emplace({item.where, item.peer}, 0);
    if (added) {
      entry->second = addLane(schedule_, static_cast<size_t>(item.where),
                              item.where == Where::kAround ? run_.part : kInsideServer);
    }
    return entry->second;
  }

  void add(const Item& item) {
    const int lane = laneOf(item);
    Data& data = data_[item.ready];
    if (item.kind == Item::Kind::kSend) {
      const StepRef sent = addSend(schedule_, lane, item.peer, item.range, data.received);
      if (item.ready != 0) data.sent = sent;
      return;
    }
    Receive receive;
    receive.peer = item.peer;
    receive.into = item.range;
    receive.turn_after = data.received;
    receive.reduce = item.kind != Item::Kind::kReceive;
    receive.target = item.range;
    std::optional<size_t> slot;
    if (item.kind == Item::Kind::kAddTo && (data.first_peer < 0 || data.first_peer == item.peer)) {
      data.first_peer = item.peer;
      receive.operand = item.own;
      if (data.predecessor != Data::kNone) {
        receive.after = data_[data.predecessor].received;
        receive.after_send = data_[data.predecessor].sent;
      }
    } else if (receive.reduce) {
      Slots& slots = slots_.at({item.where, item.peer});
      const Slots::Slot taken = slots.take(receive, item.range.bytes);
      slot = taken.number;
      receive.into = taken.range;
      receive.operand = taken.range;
    }
    data.received = addReceive(schedule_, lane, receive);
    if (slot) slots_.at({item.where, item.peer}).filledBy(*slot, data.received);
  }

  struct Place {
    size_t offset = 0;
    size_t data = Data::kNone;  // the last user
  };

  const GroupLayout& layout_;
  const int rank_;
  const int leader_;
  const int place_;
  const std::vector<int>& others_;
  const size_t element_bytes_;
  const GraphRun run_;
  const std::vector<ShardBlock> blocks_;
  std::vector<Item> items_;
  std::vector<Data> data_;
  std::vector<size_t> by_block_;  // Data of a block's sum, by block and round
  std::map<std::tuple<size_t, int32_t, size_t>, Place> scratch_of_;  // block, atom, turn
  size_t scratch_ = 0;
  size_t window_ = 1;  // rounds with scratch memory of their own
  size_t output_first_ = 0;
  int waves_ = 0;  // of the first phase
  Schedule schedule_;
  std::map<std::pair<Where, int>, int> lanes_;
  std::map<std::pair<Where, int>, Slots> slots_;
};

std::vector<ShardBlock> memberBlocks(const GroupLayout& layout, const std::vector<size_t>& counts) {
  const std::vector<size_t> starts = blockStarts(counts);
  std::vector<ShardBlock> blocks;
  for (int member = 0; member < layout.size(); ++member) {
    blocks.push_back({layout.placeOf(member), member, {starts[member], counts[member]}});
  }
  return blocks;
}

}  // namespace

Schedule graphAllGatherSchedule(const GroupLayout& layout, const GatherPlan& plan, int rank,
                                const std::vector<size_t>& counts, size_t element_bytes,
                                const GraphRun& run) {
  Builder builder(layout, rank, element_bytes, run, memberBlocks(layout, counts));
  builder.gather(plan, Buffer::kOutput, true);
  return builder.build();
}

Schedule graphReduceScatterSchedule(const GroupLayout& layout, const GatherPlan& backward, int rank,
                                    const std::vector<size_t>& counts, size_t element_bytes,
                                    const GraphRun& run) {
  Builder builder(layout, rank, element_bytes, run, memberBlocks(layout, counts));
  builder.scatter(backward, true, blockStarts(counts)[rank]);
  return builder.build();
}

Schedule graphAllReduceSchedule(const GroupLayout& layout, const GatherPlan& backward,
                                const GatherPlan& plan, int rank, size_t count,
                                size_t element_bytes, const GraphRun& run) {
  const std::vector<int>& leaders = layout.leaders();
  std::vector<ShardBlock> blocks;
  for (size_t i = 0; i < leaders.size(); ++i) {
    blocks.push_back({static_cast<int>(i), leaders[i], divide({0, count}, leaders.size(), i)});
  }
  Builder builder(layout, rank, element_bytes, run, std::move(blocks));
  builder.scatter(backward, false);
  builder.gather(plan, Buffer::kInput, false);
  return builder.build();
}

Schedule graphBroadcastSchedule(const GroupLayout& layout, const GatherPlan& plan, int rank,
                                int root, size_t count, size_t element_bytes, const GraphRun& run) {
  Builder builder(layout, rank, element_bytes, run, {{layout.placeOf(root), root, {0, count}}});
  builder.gather(plan, Buffer::kInput, true);
  return builder.build();
}

Schedule graphReduceSchedule(const GroupLayout& layout, const GatherPlan& backward, int rank,
                             int root, size_t count, size_t element_bytes, const GraphRun& run) {
  Builder builder(layout, rank, element_bytes, run, {{layout.placeOf(root), root, {0, count}}});
  builder.scatter(backward, true);
  return builder.build();
}

}  // namespace topoopt
