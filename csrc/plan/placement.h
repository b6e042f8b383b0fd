// The servers and the split of an operator, as in torch_topoopt.plan.placement.

#pragma once

#include <compare>
#include <cstdint>
#include <vector>

namespace topoopt::plan {

// How parameters are split. kColumns: by output features. kRows: by summed features, so outputs are
// partial sums. kExperts: by experts, each with the tokens routed to it.
enum class ParameterKind : uint8_t { kNone, kColumns, kRows, kExperts };

// Number of parts per dimension. `parameter` is 1 exactly with kNone.
struct Degrees {
  int sample = 1;
  ParameterKind kind = ParameterKind::kNone;
  int parameter = 1;
  int attribute = 1;

  int shards() const { return sample * parameter * attribute; }
  auto operator<=>(const Degrees&) const = default;
};

// Shard (i, j, k) of sample part i, parameter part j and attribute part k has the index (i *
// parameter + j) * attribute + k in `servers`.
struct Placement {
  std::vector<int> servers;
  Degrees degrees;

  auto operator<=>(const Placement&) const = default;
};

}  // namespace topoopt::plan
