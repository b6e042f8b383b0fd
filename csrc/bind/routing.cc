// Bindings of routing, for torch_topoopt.topology.

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <tuple>
#include <utility>
#include <vector>

#include "plan/balanced_shares.h"
#include "topology/rerouting.h"

namespace py = pybind11;

namespace topoopt {
namespace {

using EdgeTuple = std::tuple<int, int, double>;

// The paths of every commodity as lists of servers.
using PathTuple = std::pair<std::vector<int>, double>;

struct Rerouted {
  std::vector<std::vector<PathTuple>> paths;
  double utilisation;
  double bound;
  int64_t sweeps;
};

Rerouted rerouted(int servers, const std::vector<EdgeTuple>& edges,
                  const std::vector<EdgeTuple>& commodities, double gap, int sweeps) {
  std::vector<Edge> links;
  for (const auto& [source, target, capacity] : edges) links.push_back({source, target, capacity});
  std::vector<Commodity> wanted;
  for (const auto& [source, target, bytes] : commodities) wanted.push_back({source, target, bytes});
  Rerouting rerouting(servers, links, wanted);
  rerouting.run(gap, sweeps);
  rerouting.shorten();
  std::vector<std::vector<PathTuple>> paths;
  for (const auto& own : rerouting.flows()) {
    auto& list = paths.emplace_back();
    for (const PathFlow& path : own) {
      std::vector<int> visited{links[path.edges.front()].source};
      for (int e : path.edges) visited.push_back(links[e].target);
      list.emplace_back(std::move(visited), path.bytes);
    }
  }
  return {std::move(paths), rerouting.utilisation(), rerouting.bound(), rerouting.sweeps()};
}

std::vector<std::vector<PathTuple>> balancedShares(int servers, const std::vector<EdgeTuple>& edges,
                                                   const std::vector<EdgeTuple>& commodities) {
  std::vector<RatedLink> links;
  for (const auto& [source, target, rate] : edges) links.push_back({source, target, rate});
  BytesByPair bytes(servers);
  for (const auto& [source, target, size] : commodities) bytes.at(source, target) += size;
  const RouteChoices choices(servers, std::move(links));
  const BalancedShares shares(choices, bytes);
  std::vector<std::vector<PathTuple>> paths;
  for (const auto& [source, target, size] : commodities) {
    auto& list = paths.emplace_back();
    const std::vector<double>& of_pair = shares.of(source, target);
    for (size_t i = 0; i < of_pair.size(); ++i) {
      if (of_pair[i] > 0) list.emplace_back(choices.of(source, target)[i], of_pair[i]);
    }
  }
  return paths;
}

}  // namespace

void bindRouting(py::module_& module) {
  py::class_<Rerouted>(module, "Rerouted")
      .def_readonly("paths", &Rerouted::paths, "(servers, bytes) of every path, by commodity.")
      .def_readonly("utilisation", &Rerouted::utilisation, "Of the busiest edge.")
      .def_readonly("bound", &Rerouted::bound, "No routing has less utilisation.")
      .def_readonly("sweeps", &Rerouted::sweeps);
  module.def("rerouted", &rerouted, py::arg("servers"), py::arg("edges"), py::arg("commodities"),
             py::arg("gap"), py::arg("sweeps"), py::call_guard<py::gil_scoped_release>());
  module.def("balanced_shares", &balancedShares, py::arg("servers"), py::arg("edges"),
             py::arg("commodities"),
             "(servers, share) of the paths of each commodity, as ranks divide the bytes of an "
             "all-to-all.",
             py::call_guard<py::gil_scoped_release>());
}

}  // namespace topoopt
