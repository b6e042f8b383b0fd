// The links between servers with their rates, as schedules over a graph see them.

#pragma once

#include <vector>

namespace topoopt {

// All links from one server to another. Rates are in any unit, the same for all links.
struct RatedLink {
  int source = -1;
  int target = -1;
  double rate = 1.0;

  bool operator==(const RatedLink&) const = default;
};

// Links that carry their rates at the same time.
using LinkSet = std::vector<RatedLink>;

// Throws std::invalid_argument for a link that does not join two of the servers, and for a rate
// that is not positive and finite.
void checkLinks(int servers, const std::vector<RatedLink>& links);

}  // namespace topoopt
