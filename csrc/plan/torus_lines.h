// The lines along which an AllReduce on a torus moves its parts (HammingMesh paper, section V-A2c):
// one rule for what runs and what is simulated.

#pragma once

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

#include "plan/network.h"

namespace topoopt {

inline constexpr size_t kTorusParts = 4;

// Rows or columns, each with its members in the order in which data moves. Of one part the `first`
// lines scatter and gather, the `second` ones reduce between.
struct TorusLines {
  std::vector<std::vector<int>> first;
  std::vector<std::vector<int>> second;
};

// Of part `number`: odd ones take columns for rows, and those from 2 on run against the order of
// rows and columns, so that in every step all four links of a server send.
inline TorusLines torusLines(const plan::Grid& grid, size_t number) {
  TorusLines lines{grid, {}};
  for (size_t column = 0; column < grid.front().size(); ++column) {
    std::vector<int>& line = lines.second.emplace_back();
    for (const std::vector<int>& row : grid) line.push_back(row[column]);
  }
  if (number / 2 == 1) {
    for (std::vector<int>& line : lines.first) std::reverse(line.begin(), line.end());
    for (std::vector<int>& line : lines.second) std::reverse(line.begin(), line.end());
  }
  if (number % 2 == 1) std::swap(lines.first, lines.second);
  return lines;
}

// What every hop of a line sends in all steps of a phase, of each byte of the AllReduce: along the
// first lines where they scatter or gather, and along the second ones, which do both.
inline std::pair<double, double> torusShares(const TorusLines& lines) {
  const double first = static_cast<double>(lines.first.front().size());
  const double second = static_cast<double>(lines.second.front().size());
  const double part = 1.0 / static_cast<double>(kTorusParts);
  return {(first - 1) / first * part, 2 * (second - 1) / (first * second) * part};
}

}  // namespace topoopt
