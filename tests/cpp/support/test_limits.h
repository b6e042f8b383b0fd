// How long and how much these tests may take, as test_cpp.py says. (Named limits.h it would hide
// the C library's.)

#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdlib>

namespace topoopt {

// The number in an environment variable, or `otherwise`.
inline double testNumber(const char* variable, double otherwise) {
  const char* text = std::getenv(variable);
  return text == nullptr ? otherwise : std::strtod(text, nullptr);
}

// What takes at most `idle` on an idle machine takes TOPOOPT_TEST_SLOWNESS times as long here.
inline std::chrono::milliseconds limitOf(std::chrono::milliseconds idle) {
  const double slowness = std::max(1.0, testNumber("TOPOOPT_TEST_SLOWNESS", 1));
  return std::chrono::milliseconds(
      static_cast<int64_t>(static_cast<double>(idle.count()) * slowness));
}

inline const std::chrono::milliseconds kWaitLimit = limitOf(std::chrono::seconds(60));
inline const std::chrono::milliseconds kNoHurry = limitOf(std::chrono::seconds(45));

// How much of what is random to do: `all`, or the part of it that TOPOOPT_TEST_SHARE says.
inline size_t partOf(size_t all) {
  const double share = std::clamp(testNumber("TOPOOPT_TEST_SHARE", 1), 0.0, 1.0);
  return std::max<size_t>(1, static_cast<size_t>(static_cast<double>(all) * share));
}

}  // namespace topoopt
