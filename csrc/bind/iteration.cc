// Bindings of placements, of a job's costs and of one iteration; torch_topoopt.search.lowering,
// .search.traffic and .sim.iteration are their front.

#include "bind/iteration.h"

#include <pybind11/stl.h>

#include <limits>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>

#include "sim/iteration/iteration.h"
#include "sim/iteration/job.h"
#include "sim/iteration/routed_network.h"

namespace py = pybind11;

namespace topoopt {
namespace {

// sample, kind, parameter, attribute
using PyDegrees = std::tuple<int, int, int, int>;
// forward_s, backward_s, state_bytes, saved_bytes
using PyShard = std::tuple<double, double, int64_t, int64_t>;
// producer, size_bytes, gradient_bytes, tensor
using PyOperand = std::tuple<int, double, double, int>;
// servers, parameter, attribute, whole parameter and attribute, by expert
using PyNeed = std::tuple<std::vector<int>, int, int, bool, bool, bool>;
// shards, all_reduce_bytes, kinds that need whole operands, whole positions, operands
using PyOperator =
    std::tuple<std::vector<PyShard>, double, std::vector<int>, bool, std::vector<PyOperand>>;

ParameterSplit kindOf(int kind) {
  if (kind < 0 || kind >= kParameterSplits) {
    throw std::invalid_argument("kind: " + std::to_string(kind) + " is not in 0.." +
                                std::to_string(kParameterSplits - 1));
  }
  return static_cast<ParameterSplit>(kind);
}

constexpr double kAll = std::numeric_limits<double>::infinity();

std::shared_ptr<Job> makeJob(int servers, int micro_batches, const std::vector<PyDegrees>& degrees,
                             double local_reduce_s_per_byte,
                             const std::vector<PyOperator>& operators, double first_bucket_bytes,
                             double bucket_bytes, double overhead_s, double servers_at_once) {
  auto job = std::make_shared<Job>(Job{servers,
                                       micro_batches,
                                       {},
                                       local_reduce_s_per_byte,
                                       {},
                                       {first_bucket_bytes, bucket_bytes},
                                       overhead_s,
                                       servers_at_once});
  for (const auto& [sample, kind, parameter, attribute] : degrees) {
    job->degrees.push_back({sample, kindOf(kind), parameter, attribute});
  }
  for (const auto& [shards, all_reduce_bytes, whole, positions, operands] : operators) {
    OperatorCost& op = job->operators.emplace_back();
    for (const auto& [forward_s, backward_s, state, saved] : shards) {
      op.shards.push_back({forward_s, backward_s, state, saved});
    }
    op.all_reduce_bytes = all_reduce_bytes;
    for (int kind : whole) op.whole_operands[static_cast<size_t>(kindOf(kind))] = true;
    op.whole_positions = positions;
    for (const auto& [producer, size, gradient, tensor] : operands) {
      op.operands.push_back({producer, size, gradient, tensor});
    }
  }
  job->validate();
  return job;
}

py::tuple simulateIteration(const std::shared_ptr<Job>& job,
                            const std::shared_ptr<RoutedNetwork>& network,
                            const std::vector<PyPlacement>& strategy, std::optional<bool> fold) {
  IterationModel model(job, network, foldingOf(fold));
  const std::vector<int> ids = model.costs().intern(toStrategy(strategy));
  double seconds = 0;
  {
    py::gil_scoped_release release;
    seconds = model.run(ids);
  }
  return py::make_tuple(seconds, model.computeSeconds(), model.linkBytes(), model.taskCount());
}

std::vector<int64_t> memoryBytes(const std::shared_ptr<Job>& job,
                                 const std::vector<PyPlacement>& strategy) {
  PlacementCosts costs(job);
  return costs.memoryBytes(costs.intern(toStrategy(strategy)));
}

std::vector<std::tuple<int, int, int, int, double>> transfers(const PyPlacement& producer,
                                                              const PyPlacement& consumer,
                                                              bool whole_parameter,
                                                              bool whole_attribute) {
  std::vector<std::tuple<int, int, int, int, double>> found;
  const Need need = needOf(toPlacement(consumer), {whole_parameter, whole_attribute});
  for (const Transfer& t : transfersBetween(toPlacement(producer), need)) {
    found.emplace_back(t.producer_shard, t.consumer_shard, t.source, t.target, t.fraction);
  }
  return found;
}

PyNeed needed(const PyPlacement& consumer, bool whole_parameter, bool whole_attribute) {
  const Need need = needOf(toPlacement(consumer), {whole_parameter, whole_attribute});
  return {need.servers,         need.parameter,       need.attribute,
          need.whole.parameter, need.whole.attribute, need.by_expert};
}

int64_t sent(const PyPlacement& producer, const PyPlacement& consumer, bool whole_parameter,
             bool whole_attribute) {
  return sentBetween(toPlacement(producer),
                     needOf(toPlacement(consumer), {whole_parameter, whole_attribute}));
}

std::vector<int> inFlight(const std::vector<PyPlacement>& strategy,
                          const std::vector<std::vector<int>>& producers, int servers,
                          int micro_batches) {
  const std::vector<Placement> placements = toStrategy(strategy);
  std::vector<const Placement*> placed;
  for (const Placement& placement : placements) placed.push_back(&placement);
  return microBatchesInFlight(placed, producers, servers, micro_batches);
}

}  // namespace

Placement toPlacement(const PyPlacement& placement) {
  const auto& [servers, kind, parameter, attribute] = placement;
  const int64_t parts = int64_t{parameter} * attribute;
  const auto count = static_cast<int64_t>(servers.size());
  if (parameter < 1 || attribute < 1 || count < 1 || count % parts != 0) {
    throw std::invalid_argument("servers: " + std::to_string(count) + " are no multiple of " +
                                std::to_string(parameter) + " x " + std::to_string(attribute) +
                                " parts");
  }
  for (int server : servers) {
    if (server >= 0 && server < RoutedNetwork::kMaxServers) continue;
    throw std::invalid_argument("servers: " + std::to_string(server) + " is not in 0.." +
                                std::to_string(RoutedNetwork::kMaxServers - 1));
  }
  return {servers, {static_cast<int>(count / parts), kindOf(kind), parameter, attribute}};
}

std::vector<Placement> toStrategy(const std::vector<PyPlacement>& placements) {
  std::vector<Placement> strategy;
  for (const PyPlacement& placement : placements) strategy.push_back(toPlacement(placement));
  return strategy;
}

PyPlacement fromPlacement(const Placement& placement) {
  const Degrees& degrees = placement.degrees;
  return {placement.servers, static_cast<int>(degrees.kind), degrees.parameter, degrees.attribute};
}

Folding foldingOf(std::optional<bool> fold) {
  if (!fold) return Folding::kWhereItPays;
  return *fold ? Folding::kAlways : Folding::kNever;
}

void bindIteration(py::module_& module) {
  py::class_<Job, std::shared_ptr<Job>>(module, "Job")
      .def(py::init(&makeJob), py::arg("servers"), py::arg("micro_batches"), py::arg("degrees"),
           py::arg("local_reduce_s_per_byte"), py::arg("operators"),
           py::arg("first_bucket_bytes") = 0.0, py::arg("bucket_bytes") = 0.0,
           py::arg("overhead_s") = 0.0, py::arg("servers_at_once") = kAll);
  module.def("simulate_iteration", &simulateIteration, py::arg("job").none(false),
             py::arg("network").none(false), py::arg("strategy"), py::arg("fold") = py::none());
  module.def("memory_bytes", &memoryBytes, py::arg("job").none(false), py::arg("strategy"));
  module.def("placement_transfers", &transfers, py::arg("producer"), py::arg("consumer"),
             py::arg("whole_parameter"), py::arg("whole_attribute"));
  module.def("placement_sent", &sent, py::arg("producer"), py::arg("consumer"),
             py::arg("whole_parameter"), py::arg("whole_attribute"));
  module.def("placement_need", &needed, py::arg("consumer"), py::arg("whole_parameter"),
             py::arg("whole_attribute"));
  module.def(
      "parameter_groups",
      [](const PyPlacement& placement) { return parameterGroups(toPlacement(placement)); },
      py::arg("placement"));
  module.def("micro_batches_in_flight", &inFlight, py::arg("strategy"), py::arg("producers"),
             py::arg("servers"), py::arg("micro_batches"));
}

}  // namespace topoopt
