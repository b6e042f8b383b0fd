#include "sim/core/path_table.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>

namespace topoopt {

namespace {

constexpr size_t kFewUses = 32;

// Stable insertion sort: most paths are short, and std::stable_sort allocates.
void sortByLink(std::vector<LinkUse>& uses) {
  const auto before = [](const LinkUse& a, const LinkUse& b) { return a.link < b.link; };
  if (uses.size() > kFewUses) {
    std::stable_sort(uses.begin(), uses.end(), before);
    return;
  }
  for (size_t i = 1; i < uses.size(); ++i) {
    const LinkUse use = uses[i];
    size_t at = i;
    for (; at > 0 && before(use, uses[at - 1]); --at) uses[at] = uses[at - 1];
    uses[at] = use;
  }
}

}  // namespace

int PathTable::add(std::vector<LinkUse> uses) {
  if (uses.empty()) throw std::invalid_argument("links: a path needs at least one link");
  for (const LinkUse& use : uses) {
    if (!(use.load > 0) || !std::isfinite(use.load)) {
      throw std::invalid_argument("links: the load of link " + std::to_string(use.link) + " is " +
                                  std::to_string(use.load) + ", not above 0");
    }
  }
  sortByLink(uses);
  for (size_t i = 0; i < uses.size(); ++i) {
    if (i > 0 && uses_.back().link == uses[i].link) {
      uses_.back().load += uses[i].load;
    } else {
      uses_.push_back(uses[i]);
    }
  }
  begin_.push_back(static_cast<int>(uses_.size()));
  return size() - 1;
}

}  // namespace topoopt
