// Which algorithm all_reduces of a group are fastest by: a race of all that it can take, size by
// size, on a clock that is given.

#pragma once

#include <cstddef>
#include <functional>
#include <vector>

#include "plan/cost_model.h"

namespace topoopt {

// Seconds of all_reduces of `bytes` by each of the algorithms, in so many rounds in which they take
// turns: for each algorithm its rounds. All members get the same numbers.
using RoundTimer = std::function<std::vector<std::vector<double>>(
    const std::vector<Algorithm>& algorithms, size_t bytes, size_t rounds)>;

// What all_reduces take by the algorithms among which `estimate` chooses; nothing where there is
// one only. Sizes grow while an all_reduce takes little time. Where one round of an algorithm at a
// size is disturbed, however much, and all others are within a part y < 0.2 of what it takes, then
// the fastest by these times takes at most (1 + y) / (1 - y) times as long as the fastest there is,
// at every size that is timed and if none has been dropped before as hopeless (kHopeless).
std::vector<plan::AllReduceTime> raceAllReduces(const CostEstimate& estimate,
                                                const RoundTimer& timer);

}  // namespace topoopt
