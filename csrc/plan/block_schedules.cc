#include "plan/block_schedules.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "plan/graph_hops.h"
#include "plan/schedule_parts.h"

namespace topoopt {
namespace {

// A message in the path of a part of a block, from the root on.
struct Leg {
  int near;  // members
  int far;
  int wave;  // in the first round of a scatter
};

class BlockRouter {
 public:
  BlockRouter(const GroupLayout& layout, const GatherPlan& plan, int rank, int root, bool gathers,
              const std::vector<size_t>& counts, size_t element_bytes, const GraphRun& run)
      : layout_(layout),
        plan_(plan),
        rank_(rank),
        root_(root),
        gathers_(gathers),
        counts_(counts),
        starts_(blockStarts(counts)),
        element_bytes_(element_bytes),
        run_(run),
        window_(std::min(run.rounds, static_cast<size_t>(plan.steps) + 2)) {}

  Schedule build() {
    const auto hops = hopsByOrigin(plan_);
    for (int member = 0; member < layout_.size(); ++member) {
      if (member == root_) continue;
      const std::vector<ShardHop>& of_block = hops[layout_.placeOf(member)];
      std::vector<int32_t> cuts{0, plan_.units};
      for (const ShardHop& hop : of_block) cuts.insert(cuts.end(), {hop.first, hop.end});
      std::sort(cuts.begin(), cuts.end());
      cuts.erase(std::unique(cuts.begin(), cuts.end()), cuts.end());
      for (size_t i = 1; i < cuts.size(); ++i) {
        addPart(member, cuts[i - 1], cuts[i], pathTo(member, cuts[i - 1], of_block));
      }
    }
    std::sort(items_.begin(), items_.end(),
              [](const Item& a, const Item& b) { return a.key() < b.key(); });
    schedule_.scratch_bytes = scratch_;
    for (const Item& item : items_) add(item);
    return std::move(schedule_);
  }

 private:
  // Steps are added in the order of their keys, which is the same at both ends of a link; every
  // step depends on earlier ones only, so no order of events deadlocks.
  struct Item {
    int wave;
    int block;
    int32_t first;
    int peer;
    bool receives;
    Range range;
    size_t part;

    std::tuple<int, int, int32_t, bool> key() const { return {wave, block, first, receives}; }
  };
  // A part in one round.
  struct Part {
    StepRef received{};
    StepRef sent{};
    size_t predecessor = SIZE_MAX;  // used the same scratch memory in an earlier round
  };
  struct Place {
    size_t offset;
    size_t part = SIZE_MAX;  // the last user
  };

  // The legs of the part that begins at `unit`.
  std::vector<Leg> pathTo(int member, int32_t unit, const std::vector<ShardHop>& hops) const {
    const int leader = layout_.leaderOf(member);
    const int hub = layout_.leaderOf(root_);
    if (leader == hub) return {{root_, member, 0}};
    std::vector<Leg> legs;
    if (leader != member) legs.push_back({leader, member, 1 + plan_.steps});
    for (int at = layout_.placeOf(leader); at != layout_.placeOf(hub);) {
      const auto hop = std::find_if(hops.begin(), hops.end(), [&](const ShardHop& one) {
        return one.to == at && one.first <= unit && unit < one.end;
      });
      legs.push_back({layout_.leaders()[hop->from], layout_.leaders()[at], 1 + hop->step});
      at = hop->from;
    }
    if (hub != root_) legs.push_back({root_, hub, 0});
    return legs;
  }

  void addPart(int block, int32_t first, int32_t end, const std::vector<Leg>& legs) {
    for (const Leg& leg : legs) {
      if (leg.near != rank_ && leg.far != rank_) continue;
      for (size_t round = 0; round < run_.rounds; ++round) addRound(block, first, end, legs, round);
      return;
    }
  }

  void addRound(int block, int32_t first, int32_t end, const std::vector<Leg>& legs, size_t round) {
    const Extent extent = divide({0, counts_[block]}, run_.rounds, round);
    const size_t from = elementAt(extent.count, first, plan_.units);
    const size_t bytes = (elementAt(extent.count, end, plan_.units) - from) * element_bytes_;
    if (bytes == 0) return;
    parts_.emplace_back();
    Item item{0, block, first, -1, false, {}, parts_.size() - 1};
    item.range = rangeOf(block, first, round, (extent.first + from) * element_bytes_, bytes);
    for (const Leg& leg : legs) {
      if (leg.near != rank_ && leg.far != rank_) continue;
      item.wave = static_cast<int>(round) + (gathers_ ? 1 + plan_.steps - leg.wave : leg.wave);
      item.receives = (leg.far == rank_) != gathers_;
      item.peer = leg.far == rank_ ? leg.near : leg.far;
      items_.push_back(item);
    }
  }

  // A member's own block is at the start of its memory; the root has all.
  Range rangeOf(int block, int32_t first, size_t round, size_t offset, size_t bytes) {
    if (rank_ == block) return {gathers_ ? Buffer::kInput : Buffer::kOutput, offset, bytes};
    if (rank_ == root_) {
      offset += starts_[block] * element_bytes_;
      return {gathers_ ? Buffer::kOutput : Buffer::kInput, offset, bytes};
    }
    const auto [entry, added] =
        scratch_of_.try_emplace({block, first, round % window_}, Place{scratch_});
    if (added) scratch_ += bytes + element_bytes_;  // other rounds have at most one element more
    parts_.back().predecessor = std::exchange(entry->second.part, parts_.size() - 1);
    return {Buffer::kScratch, entry->second.offset, bytes};
  }

  void add(const Item& item) {
    const auto [entry, added] = lanes_.try_emplace(item.peer, 0);
    if (added) {
      const bool inside = layout_.placeOf(item.peer) == layout_.placeOf(rank_);
      entry->second = addLane(schedule_, 0, inside ? kInsideServer : run_.part);
    }
    Part& part = parts_[item.part];
    if (!item.receives) {
      part.sent = addSend(schedule_, entry->second, item.peer, item.range, part.received);
      return;
    }
    Receive receive;
    receive.peer = item.peer;
    receive.into = item.range;
    if (part.predecessor != SIZE_MAX) receive.after_send = parts_[part.predecessor].sent;
    part.received = addReceive(schedule_, entry->second, receive);
  }

  const GroupLayout& layout_;
  const GatherPlan& plan_;
  const int rank_;
  const int root_;
  const bool gathers_;
  const std::vector<size_t>& counts_;
  const std::vector<size_t> starts_;
  const size_t element_bytes_;
  const GraphRun run_;
  const size_t window_;  // rounds with scratch memory of their own
  std::vector<Item> items_;
  std::vector<Part> parts_;
  std::map<std::tuple<int, int32_t, size_t>, Place> scratch_of_;  // block, first unit, turn
  size_t scratch_ = 0;
  Schedule schedule_;
  std::map<int, int> lanes_;  // by peer
};

}  // namespace

Schedule graphScatterSchedule(const GroupLayout& layout, const GatherPlan& plan, int rank, int root,
                              const std::vector<size_t>& counts, size_t element_bytes,
                              const GraphRun& run) {
  return BlockRouter(layout, plan, rank, root, false, counts, element_bytes, run).build();
}

Schedule graphGatherSchedule(const GroupLayout& layout, const GatherPlan& backward, int rank,
                             int root, const std::vector<size_t>& counts, size_t element_bytes,
                             const GraphRun& run) {
  return BlockRouter(layout, backward, rank, root, true, counts, element_bytes, run).build();
}

}  // namespace topoopt
