// The cost model of a group, from what a few tiny collectives take over its links, and what its
// all_reduces take by each algorithm.

#pragma once

#include <chrono>
#include <memory>

#include "collectives/group/group.h"

namespace topoopt {

// Called by all members of `config` at the same time, not on the reactor thread; all get the same
// model, the mean of what they have measured. `config.cost.beta_s_per_byte` is taken from there,
// and so is the rest if the group is on one server. The messages go over channels of their own
// (kFirstProbeChannel), which links do not count as payload; once per endpoint. Throws what made a
// collective fail.
CostModel measureCost(std::shared_ptr<Endpoint> endpoint, GroupConfig config,
                      std::chrono::milliseconds limit);

}  // namespace topoopt
