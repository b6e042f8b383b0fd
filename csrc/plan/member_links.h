// The links between the members of a group, also over servers that are no members.
//
// Messages between two members follow the plan's routes, in fixed fractions. So two members without
// a link have a member link over relays, whose rate depends on the other pairs on its links. Relays
// forward bytes; they do not copy or add.

#pragma once

#include <vector>

#include "plan/gather_plan.h"
#include "plan/network.h"

namespace topoopt {

// Sets of links between places in `members`. The links of one set carry their rates at the same
// time; each set joins all members. The sets differ in their purpose:
//   - the links of the members alone;
//   - all pairs that relays can join, at max-min fair rates: few steps;
//   - the same pairs at the rates with the best bound of the slowest cut, if it is better.
// Without pairs over relays there is the first set alone; without any set, nothing joins the
// members.
//
// `links` are between servers. `routes` are those between members; pairs that have none use their
// link. Routes over other links are ignored, as senders do with routes that are broken.
std::vector<LinkSet> memberLinks(const std::vector<int>& members,
                                 const std::vector<RatedLink>& links,
                                 const std::vector<plan::Route>& routes);

// The load of the busiest link, relative to its rate, if each ring sends its share from each of its
// servers to the next, over the same routes. Pairs without a link or a route are omitted.
double busiestLink(const std::vector<plan::Ring>& rings, const std::vector<RatedLink>& links,
                   const std::vector<plan::Route>& routes);

// The same if each member sends 1 to each other.
double busiestLinkOfPairs(const std::vector<int>& members, const std::vector<RatedLink>& links,
                          const std::vector<plan::Route>& routes);

}  // namespace topoopt
