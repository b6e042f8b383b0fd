// Flows of equal demand between leaves, spread over spines so that no link carries more than it has
// to: edge colouring of a bipartite graph.

#pragma once

#include <utility>
#include <vector>

namespace topoopt {

// Gives each edge (source, target) of a bipartite multigraph one of `colours` colours so that every
// source, and every target, has at most ceil(most edges at one / colours) of each: the fewest that
// any colouring has where some vertex is busiest. By Koenig's theorem: a vertex is cut into copies
// of at most `colours` edges, and the copies' edges are coloured all different, with alternating
// paths where the two ends of an edge have no free colour in common. Throws std::invalid_argument
// for numbers out of range.
std::vector<int> balancedColouring(int vertices, const std::vector<std::pair<int, int>>& edges,
                                   int colours);

}  // namespace topoopt
