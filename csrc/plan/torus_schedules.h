// AllReduce of a group whose servers form a grid: a two-dimensional torus (HammingMesh paper,
// section V-A2c).
//
// Each row reduces and scatters, each column reduces what its members have then, all of the
// c-th part, and each row gathers: 2 (r + c - 2) steps instead of the 2 (r c - 1) of a ring. Four
// of these run at the same time, each on a quarter of the elements: two take columns for rows, and
// one of each two runs against the order of rows and columns, so that in every step all four links
// of a server send.
//
// Each link carries no more than on four rings: on a square, in the end, 2 (g - 1) / g of a quarter
// of the bytes for g servers, the least that there is. (The paper's printed formula has a little
// more, and the sum in its text twice that.)

#pragma once

#include <cstddef>

#include "plan/schedule.h"
#include "plan/torus_lines.h"

namespace topoopt {

// Reduces `count` elements of kInput in place on all members. The layout must have a grid. Where a
// server holds several members, these send their part to its leader and get the result from it, as
// with rings. Bytes of the parts that take rows first are counted as `part`, others as `part` + 1.
Schedule torusAllReduceSchedule(const GroupLayout& layout, int rank, size_t count,
                                size_t element_bytes, int part);

}  // namespace topoopt
