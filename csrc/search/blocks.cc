#include "search/blocks.h"

#include <algorithm>

namespace topoopt {
namespace {

constexpr int kEveryLength = 8;  // up to here; above, each is half as long again

std::vector<int> lengthsUpTo(int longest) {
  std::vector<int> found;
  for (int length = 1; length < longest; length += std::max(1, length / kEveryLength * 4)) {
    found.push_back(length);
  }
  found.push_back(longest);
  return found;
}

}  // namespace

std::vector<Block> blocksOf(const Job& job, const std::vector<int>& kind_of_operator) {
  const int operators = static_cast<int>(job.operators.size());
  std::vector<char> continues(operators, 0);  // whether it reads the one before
  for (int op = 1; op < operators; ++op) {
    for (const Operand& operand : job.operators[op].operands) {
      if (operand.producer == op - 1) continues[op] = 1;
    }
  }
  std::vector<Block> found;
  for (int from = 0; from < operators; ++from) {
    for (int to = 0; to < operators; ++to) {
      if (from == to) continue;
      int longest = 0;
      while (std::max(from, to) + longest < operators &&
             kind_of_operator[from + longest] == kind_of_operator[to + longest] &&
             (longest == 0 || (continues[from + longest] && continues[to + longest]))) {
        ++longest;
      }
      if (longest < 2) continue;  // single operators, tables among them, are left to others
      for (int length : lengthsUpTo(longest)) found.push_back({from, to, length});
    }
  }
  std::stable_sort(found.begin(), found.end(),
                   [](const Block& a, const Block& b) { return a.length > b.length; });
  return found;
}

}  // namespace topoopt
