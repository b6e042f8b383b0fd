// How long these tests may take, as test_cpp.py says. (Named limits.h it would hide the C
// library's.)

#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdlib>

namespace topoopt {

// What takes at most `idle` on an idle machine takes TOPOOPT_TEST_SLOWNESS times as long here.
inline std::chrono::milliseconds limitOf(std::chrono::milliseconds idle) {
  const char* text = std::getenv("TOPOOPT_TEST_SLOWNESS");
  const double slowness = text == nullptr ? 1.0 : std::max(1.0, std::strtod(text, nullptr));
  return std::chrono::milliseconds(
      static_cast<int64_t>(static_cast<double>(idle.count()) * slowness));
}

inline const std::chrono::milliseconds kWaitLimit = limitOf(std::chrono::seconds(20));
inline const std::chrono::milliseconds kNoHurry = limitOf(std::chrono::seconds(15));

}  // namespace topoopt
