// Order-independent keys of flows that begin at the same time.

#pragma once

#include <cstdint>
#include <vector>

#include "sim/core/flow_program.h"

namespace topoopt::packet {

// A key per task, derived from `seed`, its links and size, and the keys of all direct and indirect
// dependencies and dependents. Tasks with equal keys are interchangeable, except for 64-bit
// collisions and graphs that this much colour refinement cannot distinguish.
std::vector<uint64_t> flowKeys(const FlowProgram& program, uint64_t seed);

}  // namespace topoopt::packet
