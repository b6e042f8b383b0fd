#include "plan/flooding_schedules.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <tuple>
#include <utility>
#include <vector>

#include "plan/graph_hops.h"
#include "plan/schedule_parts.h"

namespace topoopt {
namespace {

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
    std::vector<std::pair<int, ShardHop>> steps;  // origin, hop
    const auto hops = hopsByOrigin(plan_);
    for (size_t origin = 0; origin < leaders_.size(); ++origin) {
      for (const ShardHop& hop : OriginHops(plan_, hops[origin]).gathering(place_)) {
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

  void addMessage(int origin, const ShardHop& hop) {
    const auto at = [&](int32_t unit) {
      return elementAt(count_, unit, plan_.units) * element_bytes_;
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

Schedule floodingAllReduceSchedule(const GroupLayout& layout, const GatherPlan& plan, int rank,
                                   size_t count, size_t element_bytes, int part) {
  const size_t bytes = count * element_bytes;
  const std::vector<int>& leaders = layout.leaders();
  const int size = static_cast<int>(leaders.size());
  if (bytes == 0 || size < 2) return {};
  Flood flood(plan, leaders, layout.placeOf(rank), count, element_bytes, part);
  flood.addMessages();
  flood.addSums();
  return flood.take();
}

}  // namespace topoopt
