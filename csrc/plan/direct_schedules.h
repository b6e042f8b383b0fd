// Collectives with direct messages between members, over any routes: block exchanges, and
// algorithms with the fewest rounds for small data. Every schedule is for the member `rank`; its
// bytes are counted as `part`.

#pragma once

#include <cstddef>
#include <vector>

#include "plan/schedule.h"

namespace topoopt {

// Sends send_bytes[i] bytes of kInput to, and receives receive_bytes[i] into kOutput from, each
// other member i. Blocks are consecutive. Members are visited from `rank` + 1 on to avoid a common
// first target. The caller copies the own block.
Schedule exchangeSchedule(int rank, const std::vector<size_t>& send_bytes,
                          const std::vector<size_t>& receive_bytes, int part = 0);

// Reduces `count` elements of kInput in place on all members by recursive doubling: in round k,
// members at distance 2^k in the order exchange their partial sums. Members beyond a power of two
// hand their data to a neighbour first and get the result from it. Members may add two values in
// either order, so the reduction must be commutative bit for bit.
Schedule doublingAllReduceSchedule(const std::vector<int>& order, int rank, size_t count,
                                   size_t element_bytes, int part = 0);
size_t doublingRounds(size_t members);  // exchanges of a core member

// The same on a torus whose rows and columns have powers of two members: partners are 1, 1, 3, 5,
// 11 ... places away in their row or column, so few links carry a message (Swing, NSDI'24). A
// quarter of the elements each starts along rows and along columns, in both directions, so that all
// links of a server send.
Schedule swingAllReduceSchedule(const plan::Grid& grid, int rank, size_t count,
                                size_t element_bytes, int part = 0);

// The partners of the member at `row` and `column` in quarter `number`, in order.
std::vector<int> swingPartners(const plan::Grid& grid, size_t row, size_t column, size_t number);

// Completes at a member when all have started it: in round k every member sends one byte of kInput
// to the member 2^k places ahead in the order.
Schedule disseminationSchedule(const std::vector<int>& order, int rank, int part = 0);

}  // namespace topoopt
