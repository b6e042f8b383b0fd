#include "collectives/group/ring_counters.h"

#include <algorithm>
#include <set>
#include <utility>

namespace topoopt {

void addCounters(std::vector<RingCounters>& list, const GroupLayout& layout,
                 const std::vector<PartCounters>& parts, const std::vector<int>& ranks) {
  const Parts numbers = partsOf(layout);
  // Matched entries: a layout may contain equal rings.
  std::set<size_t> taken;
  int rings = static_cast<int>(std::count_if(
      list.begin(), list.end(), [](const RingCounters& other) { return other.kind == "ring"; }));
  for (int part = 0; part < numbers.count; ++part) {
    RingCounters entry;
    entry.kind = part < numbers.trees    ? "ring"
                 : part < numbers.direct ? "tree"
                 : part < numbers.graph  ? "direct"
                 : part < numbers.torus  ? "graph"
                                         : "torus";
    entry.index = part < numbers.trees    ? rings
                  : part < numbers.direct ? part - numbers.trees
                  : part < numbers.graph  ? part - numbers.direct
                  : part < numbers.torus  ? part - numbers.graph
                                          : part - numbers.torus;
    if (part < numbers.trees) {
      for (const int member : layout.rings()[part].servers) {
        entry.ranks.push_back(ranks[member]);
      }
    }
    size_t at = 0;
    for (; at < list.size(); ++at) {
      const RingCounters& other = list[at];
      if (taken.contains(at) || other.kind != entry.kind || other.ranks != entry.ranks) continue;
      if (entry.kind == "ring" || other.index == entry.index) break;
    }
    if (at == list.size()) {
      if (entry.kind == "ring") ++rings;
      list.push_back(std::move(entry));
    }
    taken.insert(at);
    if (static_cast<size_t>(part) >= parts.size()) continue;
    list[at].sent_bytes += parts[part].sent_bytes;
    list[at].seconds += parts[part].seconds;
  }
}

}  // namespace topoopt
