// Circuits for the current demand (TopoOpt paper, Appendix E.4, Algorithm 5).

#pragma once

#include <utility>
#include <vector>

namespace topoopt {

using Circuit = std::pair<int, int>;                         // source, target
using PairDemand = std::vector<std::pair<Circuit, double>>;  // bytes, in ascending order of pairs

// The pair with the most bytes gets a circuit while both servers have ports: `degree` transmitters
// and receivers each. With `halve`, its bytes count half for the next one. Unused ports keep
// circuits of `present` with both ends free. Throws std::invalid_argument for a server outside
// 0..servers-1, and for servers or ports that are negative or more than a million.
std::vector<Circuit> circuitsFor(int servers, int degree, const PairDemand& demand,
                                 const std::vector<Circuit>& present, bool halve);

// Two-edge replacement (OWAN): exchanges the targets of two circuits in different parts of the
// network, at most `servers` times, until it is connected. If every server has equal numbers in and
// out, each part is a closed walk and an exchange joins two. It selects the circuits with the least
// bytes. Throws as circuitsFor.
void connectParts(int servers, std::vector<Circuit>& circuits, const PairDemand& demand);

}  // namespace topoopt
