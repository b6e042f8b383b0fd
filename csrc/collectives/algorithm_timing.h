// Times the all_reduces of a group by every algorithm that the group can use, size by size.

#pragma once

#include <cstddef>
#include <functional>
#include <vector>

#include "plan/cost_model.h"

namespace topoopt {

// Returns the seconds of each algorithm's rounds with `bytes`. The algorithms alternate, and all
// members get the same numbers.
using RoundTimer = std::function<std::vector<std::vector<double>>(
    const std::vector<Algorithm>& algorithms, size_t bytes, size_t rounds)>;

// Returns the times of the candidates of `estimate`; empty if there is only one.
//
// Suppose that one round of an algorithm at a size is disturbed, and that all others are within a
// fraction y < 0.2 of its true time. The selected algorithm then takes at most (1 + y) / (1 - y)
// times as long as the fastest. This holds at every timed size, unless the fastest was dropped
// earlier (kHopeless).
std::vector<plan::AllReduceTime> timeAlgorithms(const CostEstimate& estimate,
                                                const RoundTimer& timer);

}  // namespace topoopt
