// Scatter and gather over the links of any graph, as scatterPlan() says.
//
// Server i of a plan is layout.leaders()[i]. Leaders send on what is for others. counts[i] elements
// belong to member i, the root's own included, which the caller copies. `rounds` divides every
// block into consecutive parts that follow each other through the steps of the plan.

#pragma once

#include <cstddef>
#include <vector>

#include "plan/gather_plan.h"
#include "plan/graph_schedules.h"
#include "plan/schedule.h"

namespace topoopt {

// From consecutive blocks in kInput of `root`, the root of the plan, to kOutput of all.
Schedule graphScatterSchedule(const GroupLayout& layout, const GatherPlan& plan, int rank, int root,
                              const std::vector<size_t>& counts, size_t element_bytes,
                              const GraphRun& run);

// From kInput of all to consecutive blocks in kOutput of `root`; `backward` is a plan on the
// reversed links.
Schedule graphGatherSchedule(const GroupLayout& layout, const GatherPlan& backward, int rank,
                             int root, const std::vector<size_t>& counts, size_t element_bytes,
                             const GraphRun& run);

}  // namespace topoopt
