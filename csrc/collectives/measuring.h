// Measures the cost model of a group with tiny collectives over its links and one all_reduce per
// algorithm and size.

#pragma once

#include <chrono>
#include <memory>

#include "collectives/group/group.h"

namespace topoopt {

// All members of `config` call this at the same time, not on the reactor thread, and get the same
// model: the mean of their measurements. `config.cost.beta_s_per_byte` is kept, and on one server
// the rest is, too. The messages use channels that do not count as payload (kFirstProbeChannel);
// call it once per endpoint. Throws the failure of a collective.
CostModel measureCost(std::shared_ptr<Endpoint> endpoint, GroupConfig config,
                      std::chrono::milliseconds limit);

}  // namespace topoopt
