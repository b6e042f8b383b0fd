// Log lines in the format of the Python logger "torch_topoopt". The environment variable
// TOPOOPT_LOG (info or debug) enables lines below warnings, as in Python.

#pragma once

#include <string>

namespace topoopt {

enum class LogLevel { kDebug, kInfo, kWarning };

// Returns whether lines of this level are shown; reads the environment once.
bool logs(LogLevel level);

// Writes one line to stderr.
void logLine(LogLevel level, const std::string& text);

}  // namespace topoopt
