// Spreads equal flows between leaves evenly over spines: edge colouring of a bipartite graph.

#pragma once

#include <utility>
#include <vector>

namespace topoopt {

// Colours the edges (source, target) of a bipartite multigraph with `colours` colours. Every vertex
// has at most ceil(maximum degree / colours) edges of each colour, which is optimal for the busiest
// vertex. By Koenig's theorem: vertices are split into copies of at most `colours` edges, which are
// coloured distinctly. Alternating paths resolve edges whose ends share no free colour. Throws
// std::invalid_argument for numbers out of range.
std::vector<int> balancedColouring(int vertices, const std::vector<std::pair<int, int>>& edges,
                                   int colours);

}  // namespace topoopt
