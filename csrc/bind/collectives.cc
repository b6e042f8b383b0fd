// Bindings of the candidates for a collective on a graph of links, for torch_topoopt.topology.

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <array>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "bind/plan_types.h"
#include "plan/collective_candidates.h"

namespace py = pybind11;

namespace topoopt {

constexpr Collective kCollectives[] = {Collective::kAllReduce, Collective::kAllGather,
                                       Collective::kReduceScatter, Collective::kBroadcast,
                                       Collective::kReduce};

Collective collectiveNamed(const std::string& name) {
  for (const Collective collective : kCollectives) {
    if (name == nameOf(collective)) return collective;
  }
  throw std::invalid_argument("collective: '" + name +
                              "' is not one of all_reduce, all_gather, reduce_scatter, broadcast, "
                              "reduce");
}

namespace {

std::unique_ptr<GraphGroup> groupOf(int servers, const std::vector<std::array<double, 3>>& links,
                                    std::vector<plan::Ring> rings, double alpha_s, double hop_s) {
  std::vector<RatedLink> rated;
  for (const auto& [source, target, rate] : links) {
    rated.push_back({static_cast<int>(source), static_cast<int>(target), rate});
  }
  CostModel cost;
  cost.alpha_s = alpha_s;
  cost.per_hop_latency_s = hop_s;
  cost.gamma_s_per_byte = 0;
  py::gil_scoped_release release;
  return std::make_unique<GraphGroup>(servers, std::move(rated), std::move(rings), cost);
}

// By receiver: (sender, origin, first unit, end, step); the number of units; the number of steps.

py::tuple piecesOf(const GatherPlan& plan) {
  std::vector<std::vector<std::array<int, 5>>> pieces;
  for (const auto& received : plan.received) {
    auto& list = pieces.emplace_back();
    for (const Piece& piece : received) {
      list.push_back({piece.sender, piece.origin, piece.first, piece.end, piece.step});
    }
  }
  return py::make_tuple(pieces, plan.units, plan.steps);
}

}  // namespace

void bindCollectives(py::module_& module) {
  py::class_<CollectiveCandidate>(module, "CollectiveCandidate")
      .def_readonly("algorithm", &CollectiveCandidate::algorithm)
      .def_readonly("steps", &CollectiveCandidate::steps, "messages that wait for each other")
      .def_readonly("seconds", &CollectiveCandidate::seconds)
      .def_readonly("busiest_link_bytes", &CollectiveCandidate::busiest_link_bytes,
                    "relative to the rate of the slowest link");
  py::class_<CollectiveCandidates>(module, "CollectiveCandidates")
      .def_readonly("list", &CollectiveCandidates::list)
      .def_readonly("chosen", &CollectiveCandidates::chosen)
      .def_readonly("bound_bytes", &CollectiveCandidates::bound_bytes,
                    "least that the busiest link carries: of the slowest cut")
      .def_readonly("bound_seconds", &CollectiveCandidates::bound_seconds,
                    "their time, without latencies");
  py::class_<GraphGroup>(
      module, "GraphGroup",
      "A group with one rank on each server of a graph of links: (source, target, bytes/s).")
      .def(py::init(&groupOf), py::arg("servers"), py::arg("links"), py::arg("rings"),
           py::arg("alpha_s"), py::arg("hop_s"))
      .def_property_readonly("rings", &GraphGroup::rings, "The given rings, or those found.")
      .def(
          "candidates",
          [](const GraphGroup& group, const std::string& collective, size_t bytes) {
            const Collective named = collectiveNamed(collective);
            py::gil_scoped_release release;
            return group.candidates(named, bytes);
          },
          py::arg("collective"), py::arg("bytes"))
      .def(
          "plan",
          [](const GraphGroup& group, const std::string& algorithm, bool backward,
             std::optional<int> origin) {
            return piecesOf(group.plan(algorithm,
                                       backward ? Direction::kBackward : Direction::kForward,
                                       origin.value_or(GraphPlans::kAllOrigins)));
          },
          py::arg("algorithm"), py::arg("backward"), py::arg("origin"),
          "Pieces by receiver: (sender, origin, first, end, step), the units of a shard, steps.");
}

}  // namespace topoopt
