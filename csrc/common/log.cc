#include "common/log.h"

#include <unistd.h>

#include <cstdlib>

namespace topoopt {
namespace {

// The minimum level shown.
LogLevel shownByEnvironment() {
  const char* value = std::getenv("TOPOOPT_LOG");
  std::string level = value == nullptr ? "" : value;
  for (char& c : level) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  if (level == "debug") return LogLevel::kDebug;
  return level == "info" ? LogLevel::kInfo : LogLevel::kWarning;
}

const char* nameOf(LogLevel level) {
  return level == LogLevel::kWarning ? "WARNING" : level == LogLevel::kInfo ? "INFO" : "DEBUG";
}

}  // namespace

bool logs(LogLevel level) {
  static const LogLevel shown = shownByEnvironment();
  return level >= shown;
}

void logLine(LogLevel level, const std::string& text) {
  if (!logs(level)) return;
  const std::string line = std::string("torch_topoopt ") + nameOf(level) + ": " + text + "\n";
  // One write, so that lines of several processes do not interleave.
  [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, line.data(), line.size());
}

}  // namespace topoopt
