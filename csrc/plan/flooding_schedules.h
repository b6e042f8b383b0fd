// AllReduce for few bytes: every server sends all its data to all others, which add it up in the
// order of servers. It takes as few steps as the plan has.

#pragma once

#include <cstddef>

#include "plan/gather_plan.h"
#include "plan/schedule.h"

namespace topoopt {

// Reduces `count` elements of kInput in place, for commutative reductions of groups with one member
// per server.
Schedule floodingAllReduceSchedule(const GroupLayout& layout, const GatherPlan& plan, int rank,
                                   size_t count, size_t element_bytes, int part);

// Limit of bytes that a member receives in a flooding AllReduce; all of it needs scratch memory.
inline constexpr size_t kFloodingLimitBytes = 4 << 20;

}  // namespace topoopt
