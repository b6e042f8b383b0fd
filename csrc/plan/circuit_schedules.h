// An all-to-all over moving circuits: on each topology, members send own and relayed chunks over
// the current circuits.

#pragma once

#include <cstddef>
#include <vector>

#include "plan/schedule.h"

namespace topoopt {

// A chunk is part `part` of the data of member `source` for member `target`. The program has parts
// 0, 1, ... of each pair, of nearly equal size.
struct CircuitHop {
  int sender;
  int receiver;
  int source;
  int target;
  int part = 0;
};

// Per topology, its hops in slot order.
using CircuitProgram = std::vector<std::vector<CircuitHop>>;

// The schedule of member `rank` on each topology. bytes[i][j] is the size from member i to member
// j; blocks of kInput and kOutput are consecutive, and the caller copies the own block. Relayed
// chunks use scratch memory shared by all topologies. Lane::part is `counter`. Throws
// std::invalid_argument unless the hops deliver every chunk.
std::vector<Schedule> circuitSchedules(const CircuitProgram& program, int rank,
                                       const std::vector<std::vector<size_t>>& bytes,
                                       int counter = 0);

}  // namespace topoopt
