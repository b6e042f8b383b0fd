#include "common/log.h"

#include <unistd.h>

#include <cstdlib>

namespace topoopt {
namespace {

enum class Shown { kNothing, kInfo, kAll };

Shown shownByEnvironment() {
  const char* value = std::getenv("TOPOOPT_LOG");
  std::string level = value == nullptr ? "" : value;
  for (char& c : level) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  if (level == "debug") return Shown::kAll;
  return level == "info" ? Shown::kInfo : Shown::kNothing;
}

}  // namespace

bool logs(LogLevel level) {
  static const Shown shown = shownByEnvironment();
  return shown == Shown::kAll || (shown == Shown::kInfo && level == LogLevel::kInfo);
}

void logLine(LogLevel level, const std::string& text) {
  if (!logs(level)) return;
  const std::string line = std::string("torch_topoopt ") +
                           (level == LogLevel::kInfo ? "INFO: " : "DEBUG: ") + text + "\n";
  // One write, so that lines of several processes do not mix.
  [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, line.data(), line.size());
}

}  // namespace topoopt
