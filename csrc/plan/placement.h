// Onto which servers an operator is split and how, as torch_topoopt.plan.placement has it.

#pragma once

#include <compare>
#include <cstdint>
#include <vector>

namespace topoopt::plan {

// How the parameters are split. kColumns: each shard makes some of the output features. kRows: each
// holds some of the rows that the sum runs over, so its output is a partial sum of the whole one.
// kExperts: each holds some of the experts and works on the tokens that go to them.
enum class ParameterKind : uint8_t { kNone, kColumns, kRows, kExperts };

// Into how many parts an operator is split along each dimension. `parameter` is 1 with kNone, and
// above 1 otherwise.
struct Degrees {
  int sample = 1;
  ParameterKind kind = ParameterKind::kNone;
  int parameter = 1;
  int attribute = 1;

  int shards() const { return sample * parameter * attribute; }
  auto operator<=>(const Degrees&) const = default;
};

// Shard (i, j, k) of sample part i, parameter part j and attribute part k is number
// (i * parameter + j) * attribute + k, and runs on the server at that place in `servers`.
struct Placement {
  std::vector<int> servers;
  Degrees degrees;

  auto operator<=>(const Placement&) const = default;
};

}  // namespace topoopt::plan
