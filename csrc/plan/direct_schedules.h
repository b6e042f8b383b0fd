// Collectives whose members send to each other directly, over any routes: exchanges
// of blocks, and what takes the fewest rounds for a few bytes. Every schedule is for the member
// `rank`; its bytes are counted as `part`.

#pragma once

#include <cstddef>
#include <vector>

#include "plan/schedule.h"

namespace topoopt {

// Sends send_bytes[i] bytes of kInput to each other member i and receives receive_bytes[i] into
// kOutput; blocks lie one after the other. Members are visited starting after `rank`, so that not
// all send to the same one first. The own block is left to the caller.
Schedule exchangeSchedule(int rank, const std::vector<size_t>& send_bytes,
                          const std::vector<size_t>& receive_bytes, int part = 0);

// Reduces `count` elements of kInput in place on all members by recursive doubling: in round k the
// members at distance 2^k along the order exchange all they have, so that after log2 rounds all
// have everything. Members beyond a power of two hand their part to a neighbour first and get the
// result from it. Two members may add two values in either order, so only for reductions where that
// gives the same bits.
Schedule doublingAllReduceSchedule(const std::vector<int>& order, int rank, size_t count,
                                   size_t element_bytes, int part = 0);
size_t doublingRounds(size_t members);  // exchanges of a member that hands over nothing

// Complete at a member when all have started it: in round k every member sends one byte of kInput
// to the member 2^k places further along the order.
Schedule disseminationSchedule(const std::vector<int>& order, int rank, int part = 0);

}  // namespace topoopt
