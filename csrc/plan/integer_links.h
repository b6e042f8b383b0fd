// Links between servers with integer rates, for algorithms that have to be exact.

#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "plan/gather_plan.h"

namespace topoopt {

// By link: parallel ones are added up, and links are sorted by target, then by source.
struct IntegerLinks {
  // Throws std::invalid_argument for servers and rates out of range. Exact if the rates are
  // integers, or integers times a common unit, of at most 2^20; others are rounded to 2^-20 of the
  // largest, but not to 0.
  IntegerLinks(int servers, const std::vector<RatedLink>& links);

  size_t count() const { return source.size(); }

  int servers;
  double unit = 1;  // of rates
  std::vector<int> source{};
  std::vector<int> target{};
  std::vector<int64_t> rate{};
  std::vector<int> first_in{};   // by server, and count() at the end
  std::vector<int> first_out{};  // by server, in `out`
  std::vector<int> out{};        // links by source
};

}  // namespace topoopt
