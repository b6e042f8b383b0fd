// The lines of an AllReduce on a torus (HammingMesh paper, section V-A2c), used by the backend and
// the simulators.

#pragma once

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

#include "plan/network.h"

namespace topoopt {

inline constexpr size_t kTorusParts = 4;

// Rows or columns with members in data order. A part scatters and gathers along `first` lines, and
// reduces along `second` ones.
struct TorusLines {
  std::vector<std::vector<int>> first;
  std::vector<std::vector<int>> second;
};

// The lines of part `number`: odd ones swap columns and rows, and those from 2 on run in reverse.
// So in every step all four links of a server send.
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

// Bytes per hop in a phase, per byte of the AllReduce: along the first lines for scattering or
// gathering, and along the second ones for both.
inline std::pair<double, double> torusShares(const TorusLines& lines) {
  const double first = static_cast<double>(lines.first.front().size());
  const double second = static_cast<double>(lines.second.front().size());
  const double part = 1.0 / static_cast<double>(kTorusParts);
  return {(first - 1) / first * part, 2 * (second - 1) / (first * second) * part};
}

}  // namespace topoopt
