// Shared by the bindings of the iteration and of the search.

#pragma once

#include <pybind11/pybind11.h>

#include <optional>
#include <vector>

#include "bind/plan_types.h"
#include "sim/flow/flow_simulator.h"
#include "sim/iteration/job.h"

namespace topoopt {

template <>
struct Record<Operand> {
  static constexpr auto python = pybind11::detail::const_name("torch_topoopt.op_graph.Operand");
  static constexpr auto fields = std::tuple(
      Field{"producer", &Operand::producer}, Field{"size_bytes", &Operand::size_bytes},
      Field{"gradient_bytes", &Operand::gradient_bytes}, Field{"tensor", &Operand::tensor});
};

template <>
struct Record<GradientBuckets> {
  static constexpr auto python =
      pybind11::detail::const_name("torch_topoopt.op_graph.GradientBuckets");
  static constexpr auto fields = std::tuple(Field{"first_bytes", &GradientBuckets::first_bytes},
                                            Field{"cap_bytes", &GradientBuckets::cap_bytes});
};

template <>
struct Record<ShardCost> {
  static constexpr auto python =
      pybind11::detail::const_name("torch_topoopt.search.shards.ShardCost");
  static constexpr auto fields = std::tuple(
      Field{"forward_s", &ShardCost::forward_s}, Field{"backward_s", &ShardCost::backward_s},
      Field{"state_bytes", &ShardCost::state_bytes}, Field{"saved_bytes", &ShardCost::saved_bytes});
};

template <>
struct Record<ShardedOperator> {
  static constexpr auto python =
      pybind11::detail::const_name("torch_topoopt.search.shards.ShardedOperator");
  static constexpr auto fields =
      std::tuple(Field{"shards", &ShardedOperator::shards},
                 Field{"all_reduce_bytes", &ShardedOperator::all_reduce_bytes},
                 Field{"whole_operands", &ShardedOperator::whole_operands},
                 Field{"whole_positions", &ShardedOperator::whole_positions},
                 Field{"operands", &ShardedOperator::operands});
};

// nullopt: fold where it pays.
Folding foldingOf(std::optional<bool> fold);

void bindIteration(pybind11::module_& module);

}  // namespace topoopt
