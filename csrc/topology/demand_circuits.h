// Circuits for the demand of the moment (TopoOpt paper, Appendix E.4, Algorithm 5).

#pragma once

#include <utility>
#include <vector>

namespace topoopt {

using Circuit = std::pair<int, int>;                         // source, target
using PairDemand = std::vector<std::pair<Circuit, double>>;  // bytes, in ascending order of pairs

// The pair with the most bytes gets a circuit, and with `halve` its bytes count half for the next
// one, as long as both of its servers have ports: `degree` transmitters and receivers each. Ports
// that are left keep those of the circuits `present` that they have, where both ends are free.
// Throws std::invalid_argument for a server outside 0..servers-1, and for servers or ports that are
// negative or more than a million.
std::vector<Circuit> circuitsFor(int servers, int degree, const PairDemand& demand,
                                 const std::vector<Circuit>& present, bool halve);

// Two-edge replacement (OWAN): exchanges the targets of two circuits in different parts of the
// network until there is one part, `servers` times at most. Where every server sends and receives
// on as many circuits, each part is one closed walk, and an exchange joins two. The circuits with
// the least bytes are taken. Throws as circuitsFor.
void connectParts(int servers, std::vector<Circuit>& circuits, const PairDemand& demand);

}  // namespace topoopt
