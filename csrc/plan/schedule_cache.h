// The schedules of one member of a group, built on first use and cached.

#pragma once

#include <cstddef>
#include <list>
#include <memory>
#include <optional>
#include <vector>

#include "plan/cost_model.h"
#include "plan/schedule.h"

namespace topoopt {

// All inputs of a schedule. Sizes are in elements of `element_bytes` bytes.
struct ScheduleKey {
  Collective collective = Collective::kBarrier;
  std::vector<size_t> counts{};    // one, or one per member; kExchange: sent
  std::vector<size_t> received{};  // kExchange only
  size_t element_bytes = 1;
  int root = 0;
  bool commutative = false;

  bool operator==(const ScheduleKey&) const = default;
};

// A schedule with data for running it.
struct PreparedSchedule {
  Algorithm algorithm = Algorithm::kDirect;
  Schedule schedule;
  size_t steps = 0;                         // receives and sends of all lanes
  std::vector<size_t> part_steps;           // per part (ring, tree)
  std::vector<size_t> part_bytes;           // sent bytes per part
  std::vector<std::vector<int>> waiting{};  // per lane: lanes that wait for its steps
};

PreparedSchedule prepare(Algorithm algorithm, Schedule schedule);

// Elements that member `rank` sends to and receives from each member in an exchange, and in a
// gather or a scatter by direct messages.
struct ExchangedCounts {
  std::vector<size_t> sent{};
  std::vector<size_t> received{};
};
ExchangedCounts exchangedCounts(const ScheduleKey& key, int rank);

Request requestOf(const ScheduleKey& key);

// The schedule of member `rank`. The estimate is for the layout.
Schedule scheduleFor(const ScheduleKey& key, Algorithm algorithm, int rank,
                     const GroupLayout& layout, const CostEstimate& estimate);

class ScheduleCache {
 public:
  ScheduleCache(GroupLayout layout, int rank, const CostModel& model,
                std::optional<Algorithm> forced);

  const GroupLayout& layout() const { return layout_; }
  std::shared_ptr<const PreparedSchedule> get(const ScheduleKey& key);

  // The schedule of the given algorithm; not cached.
  std::shared_ptr<const PreparedSchedule> build(const ScheduleKey& key, Algorithm algorithm) const;

  // See CostEstimate.
  size_t busyBytes(size_t least, size_t most) const {
    return estimate_.busyBytes(least, most, forced_);
  }

  const CostEstimate& estimate() const { return estimate_; }

 private:
  struct Entry {
    ScheduleKey key;
    std::shared_ptr<const PreparedSchedule> prepared;
  };
  const GroupLayout layout_;
  const int rank_;
  const CostEstimate estimate_;
  const std::optional<Algorithm> forced_;
  std::list<Entry> entries_;  // most recently used first
  size_t kept_steps_ = 0;
};

}  // namespace topoopt
