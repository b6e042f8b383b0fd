// Collectives over the links of any graph, as GatherPlans say: breadth-first, packed trees, or
// direct messages.
//
// Server i of a plan is layout.leaders()[i]. A leader combines the data of its server's members and
// returns results, as on rings. Every schedule is for the member `rank`. `rounds` divides every
// shard into consecutive parts that follow each other through the steps of the plan.

#pragma once

#include <cstddef>
#include <vector>

#include "plan/gather_plan.h"
#include "plan/schedule.h"

namespace topoopt {

// How a schedule runs; equal on all members.
struct GraphRun {
  size_t rounds = 1;
  int part = 0;  // counter of sent bytes
};

// Member i contributes counts[i] elements; all are gathered in kOutput in order. The caller must
// have copied this member's block to kOutput.
Schedule graphAllGatherSchedule(const GroupLayout& layout, const GatherPlan& plan, int rank,
                                const std::vector<size_t>& counts, size_t element_bytes,
                                const GraphRun& run);

// `backward` is a plan on the reversed links. kInput holds a block of counts[i] elements per member
// i; this member's reduced block is written to kOutput. kInput is not changed.
Schedule graphReduceScatterSchedule(const GroupLayout& layout, const GatherPlan& backward, int rank,
                                    const std::vector<size_t>& counts, size_t element_bytes,
                                    const GraphRun& run);

// Reduces `count` elements of kInput in place: a reduce-scatter, then an all-gather.
Schedule graphAllReduceSchedule(const GroupLayout& layout, const GatherPlan& backward,
                                const GatherPlan& plan, int rank, size_t count,
                                size_t element_bytes, const GraphRun& run);

// kInput of `root` to kInput of all. The plan's only origin is the server of `root`.
Schedule graphBroadcastSchedule(const GroupLayout& layout, const GatherPlan& plan, int rank,
                                int root, size_t count, size_t element_bytes, const GraphRun& run);

// The reduction of all kInputs to kOutput of `root`; `backward` has one origin, as above.
Schedule graphReduceSchedule(const GroupLayout& layout, const GatherPlan& backward, int rank,
                             int root, size_t count, size_t element_bytes, const GraphRun& run);

}  // namespace topoopt
