// The text format of flow programs, described in docs/planning/simulators.md.

#pragma once

#include <string>
#include <string_view>

#include "sim/core/flow_program.h"

namespace topoopt {

// Parses a program. Throws std::invalid_argument that begins with "line N: ".
FlowProgram parseFlowProgram(std::string_view text);

// Reads a file. Throws std::invalid_argument that begins with "PATH: " or "PATH: line N: ".
FlowProgram readFlowProgram(const std::string& path);

}  // namespace topoopt
