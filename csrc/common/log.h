// Lines for the user of a run, in the format of the Python logger "torch_topoopt". The environment
// variable TOPOOPT_LOG (info or debug) chooses the lines that are shown beside warnings, as in
// Python.

#pragma once

#include <string>

namespace topoopt {

enum class LogLevel { kDebug, kInfo, kWarning };

// Whether lines of this level are shown; read from the environment once.
bool logs(LogLevel level);

// One whole line to stderr.
void logLine(LogLevel level, const std::string& text);

}  // namespace topoopt
