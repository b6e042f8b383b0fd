// AllReduce of a group on a two-dimensional torus (HammingMesh paper, section V-A2c).
//
// Each row reduce-scatters, each column reduces the resulting c-th part, and each row gathers: 2 (r
// + c - 2) steps instead of a ring's 2 (r c - 1). Four of these run concurrently on a quarter of
// the elements each: two swap columns and rows, and one of each two runs in reverse. So in every
// step all four links of a server send.
//
// A link carries no more than on four rings: on a square, 2 (g - 1) / g of a quarter of the bytes
// for g servers, the minimum. (The paper's formula is slightly larger, and the sum in its text
// twice that.)

#pragma once

#include <cstddef>

#include "plan/schedule.h"
#include "plan/torus_lines.h"

namespace topoopt {

// Reduces `count` elements of kInput in place on all members. The layout must have a grid. Members
// of a server send to its leader and get the result from it, as with rings. Bytes of row-first
// parts are counted as `part`, the others as `part` + 1.
Schedule torusAllReduceSchedule(const GroupLayout& layout, int rank, size_t count,
                                size_t element_bytes, int part);

}  // namespace topoopt
