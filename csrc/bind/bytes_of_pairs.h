// Bytes by ordered pair of servers for Python, without a large dictionary.

#pragma once

#include <utility>
#include <vector>

namespace topoopt {

struct __attribute__((visibility("hidden"))) BytesOfPairs {
  std::vector<std::pair<std::pair<int, int>, double>> bytes;  // in ascending order of pairs
};

}  // namespace topoopt
