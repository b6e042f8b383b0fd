#include "plan/graph_schedules.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <optional>
#include <tuple>
#include <utility>

#include "plan/schedule_parts.h"

namespace topoopt {
namespace {

// A part of a shard that crosses a link, in units. Data moves from `from` to `to` in an AllGather,
// from `to` to `from` in a ReduceScatter.
struct Hop {
  int from;
  int to;
  int32_t first;
  int32_t end;
  int step;
};

using Cuts = std::vector<int32_t>;  // ascending, without 0 and the last unit

// The pieces of one origin's shard. Messages are cut where a server's data of one message came in
// several, so that each message waits for one other.
class OriginHops {
 public:
  OriginHops(const GatherPlan& plan, const std::vector<Hop>& pieces)
      : plan_(plan), pieces_(pieces), own_cuts_(plan.received.size()), cuts_(own_cuts_.size()) {
    for (const Hop& piece : pieces) {
      for (const int32_t unit : {piece.first, piece.end}) {
        if (unit == 0 || unit == plan.units) continue;
        own_cuts_[piece.to].push_back(unit);
        cuts_[piece.to].push_back(unit);
        cuts_[piece.from].push_back(unit);
      }
    }
    for (auto* cuts : {&own_cuts_, &cuts_}) {
      for (Cuts& list : *cuts) {
        std::sort(list.begin(), list.end());
        list.erase(std::unique(list.begin(), list.end()), list.end());
      }
    }
  }

  // Parts of a server's own data in a ReduceScatter: for each, the same servers send to it.
  std::vector<std::pair<int32_t, int32_t>> atoms(int server) const {
    return parts(0, plan_.units, cuts_[server]);
  }
  // The start of the part that holds the unit.
  int32_t atomOf(int server, int32_t unit) const { return startOf(cuts_[server], unit); }
  // The same for the messages in which a server receives the shard.
  int32_t pieceOf(int server, int32_t unit) const { return startOf(own_cuts_[server], unit); }
  std::vector<std::pair<int32_t, int32_t>> pieces(int server) const {
    return parts(0, plan_.units, own_cuts_[server]);
  }

  // Messages over the links of one server.
  std::vector<Hop> gathering(int server) const {
    return cut(server, [&](const Hop& piece) { return own_cuts_[piece.from]; });
  }
  std::vector<Hop> scattering(int server) const {
    return cut(server, [&](const Hop& piece) {
      Cuts both;
      std::set_union(cuts_[piece.from].begin(), cuts_[piece.from].end(), cuts_[piece.to].begin(),
                     cuts_[piece.to].end(), std::back_inserter(both));
      return both;
    });
  }

 private:
  static int32_t startOf(const Cuts& cuts, int32_t unit) {
    const auto above = std::upper_bound(cuts.begin(), cuts.end(), unit);
    return above == cuts.begin() ? 0 : *std::prev(above);
  }

  static std::vector<std::pair<int32_t, int32_t>> parts(int32_t first, int32_t end,
                                                        const Cuts& cuts) {
    std::vector<std::pair<int32_t, int32_t>> list;
    for (auto cut = std::upper_bound(cuts.begin(), cuts.end(), first);
         cut != cuts.end() && *cut < end; ++cut) {
      list.emplace_back(first, *cut);
      first = *cut;
    }
    list.emplace_back(first, end);
    return list;
  }

  template <typename CutsOf>
  std::vector<Hop> cut(int server, CutsOf cuts_of) const {
    std::vector<Hop> list;
    for (const Hop& piece : pieces_) {
      if (piece.from != server && piece.to != server) continue;
      for (const auto& [first, end] : parts(piece.first, piece.end, cuts_of(piece))) {
        list.push_back({piece.from, piece.to, first, end, piece.step});
      }
    }
    return list;
  }

  const GatherPlan& plan_;
  const std::vector<Hop>& pieces_;
  std::vector<Cuts> own_cuts_;  // by server, of the messages in which it gets the shard
  std::vector<Cuts> cuts_;      // also of those in which it passes the shard on
};

std::vector<std::vector<Hop>> hopsByOrigin(const GatherPlan& plan) {
  std::vector<std::vector<Hop>> hops(plan.received.size());
  for (size_t server = 0; server < plan.received.size(); ++server) {
    for (const Piece& piece : plan.received[server]) {
      hops[piece.origin].push_back(
          {piece.sender, static_cast<int>(server), piece.first, piece.end, piece.step});
    }
  }
  return hops;
}

// Elements that go to, or come from, one member.
struct Block {
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
          std::vector<Block> blocks)
      : layout_(layout),
        rank_(rank),
        leader_(layout.leaderOf(rank)),
        place_(static_cast<int>(
            std::lower_bound(layout.leaders().begin(), layout.leaders().end(), leader_) -
            layout.leaders().begin())),
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
        scatterBlock(plan, origin, b, round, to_output);
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
        gatherBlock(plan, origin, b, round, buffer, owner_alone);
      }
    }
  }

  Schedule build() {
    std::sort(items_.begin(), items_.end(),
              [](const Item& a, const Item& b) { return a.key() < b.key(); });
    std::map<std::pair<Where, int>, size_t> slot_bytes;
    for (const Item& item : items_) {
      if (item.kind != Item::Kind::kAddInPlace && item.kind != Item::Kind::kAddTo) continue;
      size_t& bytes = slot_bytes[{item.where, item.peer}];
      bytes = std::max(bytes, item.range.bytes);
    }
    schedule_.scratch_bytes = scratch_;
    for (const auto& [lane, bytes] : slot_bytes) {
      slots_.emplace(lane, Slots(schedule_, kSlots, bytes));
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
    const auto at = [&](int32_t unit) {
      return extent.count / units * unit + extent.count % units * unit / units;
    };
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

  void scatterBlock(const GatherPlan& plan, const OriginHops& origin, size_t b, size_t round,
                    bool to_output) {
    const Block& block = blocks_[b];
    const Extent extent = extentOf(b, round);
    const bool here = block.origin == place_;
    const auto input = [&](int32_t first, int32_t end) {
      return rangeOf(Buffer::kInput, extent, plan.units, first, end);
    };
    Item item;
    item.block = static_cast<int>(b);
    item.wave = static_cast<int>(round);
    if (!leads()) {
      item.where = Where::kInwards;
      item.peer = leader_;
      for (const auto& [first, end] : origin.atoms(place_)) {
        item.atom = item.first = first;
        push(item, input(first, end));
      }
      if (here && to_output && block.owner == rank_) {
        item.where = Where::kOutwards;
        item.kind = Item::Kind::kReceive;
        item.ready = newData();
        for (const auto& [first, end] : origin.atoms(place_)) {
          item.atom = item.first = first;
          push(item, outputOf(input(first, end)));
        }
      }
      return;
    }
    // The sums of this server, by the start of their atoms.
    std::map<int32_t, std::pair<size_t, Range>> sums;
    std::map<int32_t, std::pair<int32_t, int32_t>> atoms;
    const std::vector<Hop> hops = origin.scattering(place_);
    for (const auto& atom : origin.atoms(place_)) {
      atoms[atom.first] = atom;
      const bool alone =
          others_.empty() && std::none_of(hops.begin(), hops.end(), [&](auto& hop) {
            return hop.from == place_ && atom.first <= hop.first && hop.first < atom.second;
          });
      const Range own = input(atom.first, atom.second);
      if (alone || own.bytes == 0) {
        sums[atom.first] = {0, own};
      } else if (!to_output) {
        sums[atom.first] = {newData(), own};
      } else if (here && block.owner == rank_) {
        sums[atom.first] = {newData(), outputOf(own)};
      } else {
        sums[atom.first] = scratchFor(b, round, atom.first, own.bytes);
      }
    }
    // All of an in-place sum at its origin is complete with its last receive.
    if (here && !to_output) {
      const size_t whole = newData();
      for (auto& [first, sum] : sums) sum.first = whole;
      by_block_[b * run_.rounds + round] = whole;
    }
    const auto addPart = [&](int32_t first, int32_t end) {
      const auto& [data, place] = sums.at(item.atom);
      const Range own = input(first, end);
      const size_t into = place.offset + (own.offset - input(item.atom, item.atom).offset);
      item.ready = data;
      item.own = own;
      item.kind = to_output ? Item::Kind::kAddTo : Item::Kind::kAddInPlace;
      push(item, {place.buffer, into, own.bytes});
    };
    for (const auto& [first, atom] : atoms) {
      item.atom = item.first = first;
      item.where = Where::kInwards;
      for (const int other : others_) {
        item.peer = other;
        addPart(first, atom.second);
      }
    }
    item.where = Where::kAround;
    for (const Hop& hop : hops) {
      item.wave = static_cast<int>(round) + plan.steps - hop.step;
      item.first = hop.first;
      item.atom = origin.atomOf(place_, hop.first);
      if (hop.from == place_) {  // from a child
        item.peer = layout_.leaders()[hop.to];
        addPart(hop.first, hop.end);
        continue;
      }
      const auto& [data, place] = sums.at(item.atom);
      const Range own = input(hop.first, hop.end);
      item.kind = Item::Kind::kSend;
      item.peer = layout_.leaders()[hop.from];
      item.ready = data;
      push(item, {place.buffer, place.offset + (own.offset - input(item.atom, item.atom).offset),
                  own.bytes});
    }
    if (!here || !to_output || block.owner == rank_) return;
    item.where = Where::kOutwards;
    item.kind = Item::Kind::kSend;
    item.peer = block.owner;
    item.wave = static_cast<int>(round) + plan.steps + 1;
    for (const auto& [first, sum] : sums) {
      item.atom = item.first = first;
      item.ready = sum.first;
      push(item, sum.second);
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

  void gatherBlock(const GatherPlan& plan, const OriginHops& origin, size_t b, size_t round,
                   Buffer buffer, bool owner_alone) {
    const Block& block = blocks_[b];
    const Extent extent = extentOf(b, round);
    const bool here = block.origin == place_;
    const auto range = [&](int32_t first, int32_t end) {
      return rangeOf(buffer, extent, plan.units, first, end);
    };
    Item item;
    item.phase = 1;
    item.block = static_cast<int>(b);
    // Data of this server: by piece, the receive that completes it.
    std::map<int32_t, size_t> ready;
    for (const auto& [first, end] : origin.pieces(place_)) ready[first] = newData();
    if (here) ready = {{0, by_block_[b * run_.rounds + round]}};
    item.wave = waves_ + static_cast<int>(round);
    if (here && owner_alone && block.owner != leader_ && (leads() || block.owner == rank_)) {
      item.where = Where::kInwards;
      item.peer = leads() ? block.owner : leader_;
      if (leads()) {
        item.kind = Item::Kind::kReceive;
        item.ready = ready[0] = newData();
      }
      push(item, range(0, plan.units));
    }
    if (leads()) {
      item.where = Where::kAround;
      for (const Hop& hop : origin.gathering(place_)) {
        const bool receives = hop.to == place_;
        item.wave = waves_ + static_cast<int>(round) + 1 + hop.step;
        item.peer = layout_.leaders()[receives ? hop.from : hop.to];
        item.atom = item.first = hop.first;
        item.kind = receives ? Item::Kind::kReceive : Item::Kind::kSend;
        item.ready = here ? ready.at(0) : ready.at(origin.pieceOf(place_, hop.first));
        push(item, range(hop.first, hop.end));
      }
    }
    item.where = Where::kOutwards;
    item.wave = waves_ + static_cast<int>(round) + 2 + plan.steps;
    for (const auto& [first, end] :
         here ? std::vector<std::pair<int32_t, int32_t>>{{0, plan.units}} : origin.pieces(place_)) {
      item.atom = item.first = first;
      item.ready = leads() ? ready.at(first) : newData();
      item.kind = leads() ? Item::Kind::kSend : Item::Kind::kReceive;
      for (const int other : leads() ? others_ : std::vector<int>{rank_}) {
        if (here && owner_alone && other == block.owner) continue;
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
  const std::vector<Block> blocks_;
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

int placeOf(const GroupLayout& layout, int member) {
  const std::vector<int>& leaders = layout.leaders();
  return static_cast<int>(
      std::lower_bound(leaders.begin(), leaders.end(), layout.leaderOf(member)) - leaders.begin());
}

std::vector<Block> memberBlocks(const GroupLayout& layout, const std::vector<size_t>& counts) {
  const std::vector<size_t> starts = blockStarts(counts);
  std::vector<Block> blocks;
  for (int member = 0; member < layout.size(); ++member) {
    blocks.push_back({placeOf(layout, member), member, {starts[member], counts[member]}});
  }
  return blocks;
}

// All members' data, whole, in scratch memory, and its sum.
class Flood {
 public:
  Flood(const GatherPlan& plan, const std::vector<int>& leaders, int place, size_t count,
        size_t element_bytes, int part)
      : plan_(plan),
        leaders_(leaders),
        place_(place),
        count_(count),
        element_bytes_(element_bytes),
        part_(part),
        arrived_(leaders.size()) {
    schedule_.scratch_bytes = leaders.size() * bytes();
  }

  void addMessages() {
    std::vector<std::pair<int, Hop>> steps;  // origin, hop
    const auto hops = hopsByOrigin(plan_);
    for (size_t origin = 0; origin < leaders_.size(); ++origin) {
      for (const Hop& hop : OriginHops(plan_, hops[origin]).gathering(place_)) {
        steps.emplace_back(static_cast<int>(origin), hop);
      }
    }
    std::sort(steps.begin(), steps.end(), [](const auto& a, const auto& b) {
      return std::tuple{a.second.step, a.first, a.second.first, a.second.to} <
             std::tuple{b.second.step, b.first, b.second.first, b.second.to};
    });
    for (const auto& [origin, hop] : steps) addMessage(origin, hop);
  }

  // The order of servers is the same on all members, so their sums are equal bit for bit.
  void addSums() {
    lane_ = addLane(schedule_, 0, kInsideServer);
    const int size = static_cast<int>(leaders_.size());
    Range sum = dataOf(0);
    waitFor(0);
    for (int next = 1; next < size; ++next) {
      waitFor(next);
      const bool last = next == size - 1;
      if (last) {
        for (const StepRef& sent : own_sends_) addLocal({}).after_send = sent;
      }
      Receive& add = addLocal({});
      add.reduce = true;
      add.base = sum;
      add.operand = dataOf(next);
      sum =
          last ? dataOf(place_) : Range{Buffer::kScratch, (leaders_.size() - 1) * bytes(), bytes()};
      add.target = sum;
    }
  }

  Schedule take() { return std::move(schedule_); }

 private:
  size_t bytes() const { return count_ * element_bytes_; }

  Range dataOf(int origin) const {
    if (origin == place_) return {Buffer::kInput, 0, bytes()};
    return {Buffer::kScratch, static_cast<size_t>(origin - (origin > place_ ? 1 : 0)) * bytes(),
            bytes()};
  }

  void addMessage(int origin, const Hop& hop) {
    const auto at = [&](int32_t unit) {
      return static_cast<size_t>(unit) * count_ / static_cast<size_t>(plan_.units) * element_bytes_;
    };
    Range piece = dataOf(origin);
    piece.offset += at(hop.first);
    piece.bytes = at(hop.end) - at(hop.first);
    if (piece.bytes == 0) return;
    const bool receives = hop.to == place_;
    const int peer = leaders_[receives ? hop.from : hop.to];
    const auto [lane, added] = lanes_.try_emplace(peer, 0);
    if (added) lane->second = addLane(schedule_, 0, part_);
    if (receives) {
      Receive receive;
      receive.peer = peer;
      receive.into = piece;
      arrived_[origin][hop.first] = addReceive(schedule_, lane->second, receive);
      return;
    }
    if (origin == place_) {
      own_sends_.push_back(addSend(schedule_, lane->second, peer, piece, {}));
      return;
    }
    const StepRef after = std::prev(arrived_[origin].upper_bound(hop.end - 1))->second;
    addSend(schedule_, lane->second, peer, piece, after);
  }

  Receive& addLocal(const StepRef& after) {
    Receive local;
    local.peer = kLocal;
    local.after = after;
    const StepRef step = addReceive(schedule_, lane_, local);
    return schedule_.lanes[step.lane].receives[step.index];
  }

  void waitFor(int origin) {
    for (const auto& [first, step] : arrived_[origin]) addLocal(step);
  }

  const GatherPlan& plan_;
  const std::vector<int>& leaders_;
  const int place_;
  const size_t count_;
  const size_t element_bytes_;
  const int part_;
  Schedule schedule_;
  int lane_ = -1;  // of sums
  std::map<int, int> lanes_;
  std::vector<std::map<int32_t, StepRef>> arrived_;  // by origin, its pieces
  std::vector<StepRef> own_sends_;
};

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
  std::vector<Block> blocks;
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
  Builder builder(layout, rank, element_bytes, run, {{placeOf(layout, root), root, {0, count}}});
  builder.gather(plan, Buffer::kInput, true);
  return builder.build();
}

Schedule graphReduceSchedule(const GroupLayout& layout, const GatherPlan& backward, int rank,
                             int root, size_t count, size_t element_bytes, const GraphRun& run) {
  Builder builder(layout, rank, element_bytes, run, {{placeOf(layout, root), root, {0, count}}});
  builder.scatter(backward, true);
  return builder.build();
}

Schedule floodingAllReduceSchedule(const GroupLayout& layout, const GatherPlan& plan, int rank,
                                   size_t count, size_t element_bytes, int part) {
  const size_t bytes = count * element_bytes;
  const std::vector<int>& leaders = layout.leaders();
  const int size = static_cast<int>(leaders.size());
  if (bytes == 0 || size < 2) return {};
  Flood flood(plan, leaders, placeOf(layout, rank), count, element_bytes, part);
  flood.addMessages();
  flood.addSums();
  return flood.take();
}

}  // namespace topoopt
