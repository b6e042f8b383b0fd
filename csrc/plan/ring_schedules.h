// Collectives over the rings of a group, for large tensors: each ring carries its share.
//
// Where a server holds several members, these send their part to its leader chunk by chunk, the
// rings run between the leaders, and the leaders pass the results on; so a link carries what it
// would with one member per server.
//
// Every schedule is for the member `rank`; `element_bytes` keeps elements whole. `rings` is how
// many of the layout's rings take part: all, or only the first.

#pragma once

#include <cstddef>
#include <vector>

#include "plan/schedule.h"

namespace topoopt {

enum class Rings { kFirst, kAll };

// The rings that take part, their shares summing to 1.
std::vector<plan::Ring> ringsInUse(const GroupLayout& layout, Rings rings);

// Reduces `count` elements of kInput in place on all members: per ring, reduce-scatter and then
// all-gather, 2 (g - 1) segment steps for g servers.
Schedule allReduceSchedule(const GroupLayout& layout, Rings rings, int rank, size_t count,
                           size_t element_bytes);

// Member i contributes counts[i] elements; all end up in kOutput, one after the other. The caller
// has already copied this member's own block to kOutput.
Schedule allGatherSchedule(const GroupLayout& layout, Rings rings, int rank,
                           const std::vector<size_t>& counts, size_t element_bytes);

// kInput holds one block of counts[i] elements per member i; the reduced block of this member ends
// up in kOutput. kInput is not changed.
Schedule reduceScatterSchedule(const GroupLayout& layout, Rings rings, int rank,
                               const std::vector<size_t>& counts, size_t element_bytes);

}  // namespace topoopt
