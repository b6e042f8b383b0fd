// An all-to-all over moving circuits: on each topology, members send own and relayed chunks over
// the current circuits.

#pragma once

#include <cstddef>
#include <vector>

#include "plan/schedule.h"

namespace topoopt {

// The chunk is all data of member `source` for member `target`.
struct CircuitHop {
  int sender;
  int receiver;
  int source;
  int target;
};

// Per topology, its hops in slot order.
using CircuitProgram = std::vector<std::vector<CircuitHop>>;

// The schedule of member `rank` on each topology. bytes[i][j] is the size from member i to member
// j; blocks of kInput and kOutput are consecutive, and the caller copies the own block. Relayed
// chunks use scratch memory shared by all topologies. Bytes are counted as `part`. Throws
// std::invalid_argument unless the hops deliver every chunk.
std::vector<Schedule> circuitSchedules(const CircuitProgram& program, int rank,
                                       const std::vector<std::vector<size_t>>& bytes, int part = 0);

}  // namespace topoopt
