// Times the all_reduces of a group by every algorithm that the group can use, size by size.

#pragma once

#include <cstddef>
#include <functional>
#include <vector>

#include "plan/cost_model.h"

namespace topoopt {

// Returns the seconds of all_reduces of `bytes`: for each algorithm, those of its rounds. The
// algorithms take turns. All members get the same numbers.
using RoundTimer = std::function<std::vector<std::vector<double>>(
    const std::vector<Algorithm>& algorithms, size_t bytes, size_t rounds)>;

// Returns the times of the candidates of `estimate`; nothing where there is only one. Sizes grow
// while an all_reduce takes little time.
//
// Suppose that one round of an algorithm at a size is disturbed, however much, and that all others
// are within a part y < 0.2 of its true time. Then the fastest by these times takes at most
// (1 + y) / (1 - y) times as long as the fastest there is. This holds at every size that is timed,
// unless the fastest was dropped before as hopeless (kHopeless).
std::vector<plan::AllReduceTime> timeAlgorithms(const CostEstimate& estimate,
                                                const RoundTimer& timer);

}  // namespace topoopt
