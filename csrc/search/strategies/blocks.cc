#include "search/strategies/blocks.h"

#include <algorithm>

namespace topoopt {
namespace {

constexpr int kEveryLength = 8;  // all lengths up to here; above, each is 1.5 times the last

std::vector<int> lengthsUpTo(int longest) {
  std::vector<int> found;
  for (int length = 1; length < longest; length += std::max(1, length / kEveryLength * 4)) {
    found.push_back(length);
  }
  found.push_back(longest);
  return found;
}

bool reads(const ShardedOperator& op, int producer) {
  return std::any_of(op.operands.begin(), op.operands.end(),
                     [&](const Operand& operand) { return operand.producer == producer; });
}

}  // namespace

std::vector<int> endsOfRows(const Job& job) {
  const int operators = static_cast<int>(job.operators.size());
  std::vector<int> ends(operators);
  for (int op = operators - 1; op >= 0; --op) {
    const bool continues = op + 1 < operators && reads(job.operators[op + 1], op);
    ends[op] = continues ? ends[op + 1] : op + 1;
  }
  return ends;
}

std::vector<Block> blocksOf(const Job& job, const std::vector<int>& kind_of_operator) {
  const int operators = static_cast<int>(job.operators.size());
  const std::vector<int> ends = endsOfRows(job);
  std::vector<Block> found;
  for (int from = 0; from < operators; ++from) {
    for (int to = 0; to < operators; ++to) {
      if (from == to) continue;
      int longest = 0;
      while (from + longest < ends[from] && to + longest < ends[to] &&
             kind_of_operator[from + longest] == kind_of_operator[to + longest]) {
        ++longest;
      }
      if (longest < 2) continue;  // other moves handle single operators, such as tables
      for (int length : lengthsUpTo(longest)) found.push_back({from, to, length});
    }
  }
  std::stable_sort(found.begin(), found.end(),
                   [](const Block& a, const Block& b) { return a.length > b.length; });
  return found;
}

}  // namespace topoopt
