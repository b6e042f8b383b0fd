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

constexpr double kAll = std::numeric_limits<double>::infinity();

std::shared_ptr<Job> makeJob(int servers, int micro_batches, std::vector<plan::Degrees> degrees,
                             double local_reduce_s_per_byte, std::vector<ShardedOperator> operators,
                             std::optional<GradientBuckets> buckets, double overhead_s,
                             double servers_at_once) {
  auto job = std::make_shared<Job>(
      Job{servers, micro_batches, std::move(degrees), local_reduce_s_per_byte, std::move(operators),
          buckets.value_or(GradientBuckets{}), overhead_s, servers_at_once});
  job->validate();
  return job;
}

// Valid on some number of servers.
const plan::Placement& checked(const plan::Placement& placement) {
  validate(placement, RoutedNetwork::kMaxServers);
  return placement;
}

struct SimulatedIteration {
  double iteration_s;
  double compute_s;
  std::vector<double> link_bytes;
  int tasks;
};

SimulatedIteration simulateIteration(const std::shared_ptr<Job>& job,
                                     const std::shared_ptr<RoutedNetwork>& network,
                                     const std::vector<plan::Placement>& strategy,
                                     std::optional<bool> fold) {
  IterationModel model(job, network, foldingOf(fold));
  const std::vector<int> ids = model.costs().intern(strategy);
  double seconds = 0;
  {
    py::gil_scoped_release release;
    seconds = model.run(ids);
  }
  return {seconds, model.computeSeconds(), model.linkBytes(), model.taskCount()};
}

std::vector<int64_t> memoryBytes(const std::shared_ptr<Job>& job,
                                 const std::vector<plan::Placement>& strategy) {
  PlacementCosts costs(job);
  return costs.memoryBytes(costs.intern(strategy));
}

std::vector<Transfer> transfers(const plan::Placement& producer, const plan::Placement& consumer,
                                bool whole_parameter, bool whole_attribute) {
  return transfersBetween(checked(producer),
                          needOf(checked(consumer), {whole_parameter, whole_attribute}));
}

Need need(const plan::Placement& consumer, bool whole_parameter, bool whole_attribute) {
  return needOf(checked(consumer), {whole_parameter, whole_attribute});
}

int64_t sent(const plan::Placement& producer, const plan::Placement& consumer, bool whole_parameter,
             bool whole_attribute) {
  return sentBetween(checked(producer),
                     needOf(checked(consumer), {whole_parameter, whole_attribute}));
}

std::vector<int> inFlight(const std::vector<plan::Placement>& strategy,
                          const std::vector<std::vector<int>>& producers, int servers,
                          int micro_batches) {
  std::vector<const Placement*> placed;
  for (const Placement& placement : strategy) placed.push_back(&checked(placement));
  return microBatchesInFlight(placed, producers, servers, micro_batches);
}

}  // namespace

Folding foldingOf(std::optional<bool> fold) {
  if (!fold) return Folding::kWhereItPays;
  return *fold ? Folding::kAlways : Folding::kNever;
}

void bindIteration(py::module_& module) {
  py::class_<Transfer>(
      module, "Transfer",
      "What a shard of a consumer takes from a shard of a producer: a `fraction` of "
      "the tensor, from server `source` to `target`.")
      .def_readonly("producer_shard", &Transfer::producer_shard)
      .def_readonly("consumer_shard", &Transfer::consumer_shard)
      .def_readonly("source", &Transfer::source)
      .def_readonly("target", &Transfer::target)
      .def_readonly("fraction", &Transfer::fraction);
  py::class_<Need>(module, "Need", "What the shards of a consumer need of a tensor.")
      .def("__eq__",
           [](const Need& need, const py::object& other) {
             return py::isinstance<Need>(other) && need == other.cast<const Need&>();
           })
      .def("__hash__",
           [](const Need& need) { return py::hash(py::tuple(py::cast(need.servers))); });
  py::class_<Job, std::shared_ptr<Job>>(
      module, "Job",
      "The costs of every operator, with shards for each of `degrees`; `buckets` of gradients "
      "(None: "
      "every operator by itself); seconds of a server beside its operators.")
      .def(py::init(&makeJob), py::arg("servers"), py::arg("micro_batches"), py::arg("degrees"),
           py::arg("local_reduce_s_per_byte"), py::arg("operators"),
           py::arg("buckets") = py::none(), py::arg("overhead_s") = 0.0,
           py::arg("servers_at_once") = kAll);
  py::class_<SimulatedIteration>(module, "SimulatedIteration",
                                 "Seconds of an iteration, compute seconds of the busiest server, "
                                 "bytes per link, and the number of tasks.")
      .def_readonly("iteration_s", &SimulatedIteration::iteration_s)
      .def_readonly("compute_s", &SimulatedIteration::compute_s)
      .def_readonly("link_bytes", &SimulatedIteration::link_bytes)
      .def_readonly("tasks", &SimulatedIteration::tasks);
  module.def("simulate_iteration", &simulateIteration, py::arg("job").none(false),
             py::arg("network").none(false), py::arg("strategy"), py::arg("fold") = py::none(),
             "`fold`: whether what behaves alike is simulated once; None: where that saves time.");
  module.def("memory_bytes", &memoryBytes, py::arg("job").none(false), py::arg("strategy"),
             "Bytes in the memory of each accelerator of every server.");
  module.def("placement_transfers", &transfers, py::arg("producer"), py::arg("consumer"),
             py::arg("whole_parameter"), py::arg("whole_attribute"),
             "Every pair of shards that share a part of the tensor.");
  module.def("placement_sent", &sent, py::arg("producer"), py::arg("consumer"),
             py::arg("whole_parameter"), py::arg("whole_attribute"),
             "How many of `placement_transfers` are between different servers.");
  module.def("placement_need", &need, py::arg("consumer"), py::arg("whole_parameter"),
             py::arg("whole_attribute"),
             "What shards need of a tensor: equal for consumers that share one transfer of it.");
  module.def(
      "parameter_groups",
      [](const plan::Placement& placement) { return parameterGroups(checked(placement)); },
      py::arg("placement"),
      "The servers that hold the same parameters, ascending: one group per part of them.");
  module.def("micro_batches_in_flight", &inFlight, py::arg("strategy"), py::arg("producers"),
             py::arg("servers"), py::arg("micro_batches"),
             "Per operator: how many micro-batches it holds at once.");
}

}  // namespace topoopt
