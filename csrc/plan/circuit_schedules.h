// An all-to-all over circuits that move: on each topology, every member sends chunks over the
// circuits that it has there, own ones and those of others.

#pragma once

#include <cstddef>
#include <vector>

#include "plan/schedule.h"

namespace topoopt {

// The chunk is all that member `source` has for member `target`.
struct CircuitHop {
  int sender;
  int receiver;
  int source;
  int target;
};

// Of each topology: its hops, in the order of their slots.
using CircuitProgram = std::vector<std::vector<CircuitHop>>;

// What member `rank` does on each topology. bytes[i][j] are what member i has for member j; blocks
// of kInput and kOutput lie one after the other, and the own block is left to the caller. Chunks
// that are relayed wait in scratch memory, which is the same for all topologies. Bytes are counted
// as `part`. Throws std::invalid_argument if the hops do not bring every chunk to its target.
std::vector<Schedule> circuitSchedules(const CircuitProgram& program, int rank,
                                       const std::vector<std::vector<size_t>>& bytes, int part = 0);

}  // namespace topoopt
