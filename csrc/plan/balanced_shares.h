// Divides the bytes of each pair of servers among its routes so that the busiest link is as little
// busy as possible: a linear program, solved by an interior-point method.
//
// Every rank solves it by itself, from the same numbers. An interior point tends to the centre of
// all optima, so it depends little on rounding; a simplex method would choose one of the vertices.

#pragma once

#include <cstddef>
#include <vector>

#include "plan/route_choices.h"

namespace topoopt {

// A square matrix by sources, then targets.
class BytesByPair {
 public:
  explicit BytesByPair(int servers)
      : servers_(static_cast<size_t>(servers)), bytes_(servers_ * servers_, 0.0) {}

  double& at(int source, int target) {
    return bytes_[static_cast<size_t>(source) * servers_ + static_cast<size_t>(target)];
  }
  double at(int source, int target) const {
    return bytes_[static_cast<size_t>(source) * servers_ + static_cast<size_t>(target)];
  }
  const std::vector<double>& all() const { return bytes_; }

 private:
  size_t servers_;
  std::vector<double> bytes_;
};

class BalancedShares {
 public:
  // Pairs without a path must have no bytes.
  BalancedShares(const RouteChoices& choices, const BytesByPair& bytes);

  // One share per path of the pair, with the sum 1; empty if it has no bytes.
  const std::vector<double>& of(int source, int target) const {
    return shares_[static_cast<size_t>(source) * static_cast<size_t>(choices_.servers()) +
                   static_cast<size_t>(target)];
  }

  // The largest quotient of bytes and rate of a link, for the bytes given here.
  double busiest(const BytesByPair& bytes) const;

 private:
  const RouteChoices& choices_;
  std::vector<std::vector<double>> shares_{};
};

}  // namespace topoopt
