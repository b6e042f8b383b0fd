// A linear program of some hundred variables.

#pragma once

#include <vector>

namespace topoopt {

struct LinearProgram {
  std::vector<double> objective{};
  // rows[i] . x <= limits[i]. No limit is negative, so x = 0 is a solution.
  std::vector<std::vector<double>> rows{};
  std::vector<double> limits{};
};

// The x >= 0 that maximises the objective, by the simplex method. The objective must be bounded.
// Numbers should be near 1: limits are changed by up to 1e-7.
std::vector<double> maximised(const LinearProgram& program);

}  // namespace topoopt
