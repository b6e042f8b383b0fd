// Keys that distinguish flows that begin in the same instant, independent of their order.

#pragma once

#include <cstdint>
#include <vector>

#include "sim/core/flow_program.h"

namespace topoopt::packet {

// A number per task, drawn from `seed` by the task's links, its size, the same of all
// that it waits for (directly or not), and of all that waits for it. Tasks with equal numbers can
// be exchanged without changing the program, but for collisions of 64 bits and for graphs that
// this much of colour refinement does not distinguish.
std::vector<uint64_t> flowKeys(const FlowProgram& program, uint64_t seed);

}  // namespace topoopt::packet
