// Collectives over a group's rings, for large tensors: each ring carries its share.
//
// Members of a server send their data to its leader by chunks, rings run between leaders, and
// leaders return results. So a link's load does not depend on the number of members per server.
//
// Every schedule is for the member `rank`; `element_bytes` keeps elements whole. `rings` selects
// all of the layout's rings, or only the first.

#pragma once

#include <cstddef>
#include <vector>

#include "plan/schedule.h"

namespace topoopt {

enum class Rings { kFirst, kAll };

// The selected rings, with shares that sum to 1.
std::vector<plan::Ring> ringsInUse(const GroupLayout& layout, Rings rings);

// Reduces `count` elements of kInput in place on all members: per ring a reduce-scatter, then an
// all-gather, 2 (g - 1) steps for g servers.
Schedule allReduceSchedule(const GroupLayout& layout, Rings rings, int rank, size_t count,
                           size_t element_bytes);

// Member i contributes counts[i] elements; all are gathered in kOutput in order. The caller must
// have copied this member's block to kOutput.
Schedule allGatherSchedule(const GroupLayout& layout, Rings rings, int rank,
                           const std::vector<size_t>& counts, size_t element_bytes);

// kInput holds a block of counts[i] elements per member i; this member's reduced block is written
// to kOutput. kInput is not changed.
Schedule reduceScatterSchedule(const GroupLayout& layout, Rings rings, int rank,
                               const std::vector<size_t>& counts, size_t element_bytes);

}  // namespace topoopt
