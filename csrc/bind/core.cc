// The extension module torch_topoopt._core: planner and simulators. Needs no torch at run time.

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "bind/architectures.h"
#include "bind/iteration.h"
#include "bind/sim.h"
#include "sim/flow/max_min_rates.h"
#include "sim/iteration/routed_network.h"

namespace py = pybind11;

namespace topoopt {

void bindIterationTasks(py::module_& module);  // bind/iteration_tasks.cc
void bindRouting(py::module_& module);         // bind/routing.cc
void bindSearch(py::module_& module);          // bind/search.cc
void bindTopology(py::module_& module);        // bind/topology.cc

namespace {

using ServerList = std::vector<int>;
using PyRoute = std::pair<ServerList, double>;
using PyRing = std::pair<ServerList, double>;
using PyGroup = std::pair<ServerList, std::vector<PyRing>>;
using PyPath = std::vector<std::pair<int, double>>;

std::vector<Group> toGroups(const std::vector<PyGroup>& groups) {
  std::vector<Group> made;
  for (const auto& [members, rings] : groups) {
    Group group{members, {}};
    std::sort(group.servers.begin(), group.servers.end());
    for (const auto& [order, share] : rings) group.rings.push_back({order, share});
    made.push_back(std::move(group));
  }
  return made;
}

std::shared_ptr<RoutedNetwork> makeNetwork(
    int servers, const std::vector<std::pair<int, int>>& links, double bytes_per_s,
    double latency_s, const std::vector<PyRoute>& routes, const std::vector<PyGroup>& groups,
    const std::vector<PyRoute>& by_offset, std::vector<int> next_hops) {
  std::vector<Route> plain_routes;
  for (const auto& [hops, weight] : routes) plain_routes.push_back({hops, weight});
  RouteRules rules{{}, std::move(next_hops)};
  for (const auto& [strides, weight] : by_offset) rules.by_offset.push_back({strides, weight});
  return std::make_shared<RoutedNetwork>(servers, links, bytes_per_s, latency_s,
                                         std::move(plain_routes), toGroups(groups),
                                         std::move(rules));
}

std::vector<PyRing> networkRings(const RoutedNetwork& network, ServerList servers) {
  std::sort(servers.begin(), servers.end());
  std::vector<PyRing> rings;
  for (const Ring& ring : network.rings(servers)) rings.emplace_back(ring.servers, ring.share);
  return rings;
}

// `hops` between each two of `servers` (ascending), row by row.
std::vector<PyRing> ringsOf(const std::vector<PyGroup>& groups, const ServerList& servers,
                            bool both_ways, const std::vector<int>& hops) {
  if (servers.empty() || hops.size() != servers.size() * servers.size() ||
      !std::is_sorted(servers.begin(), servers.end())) {
    throw std::invalid_argument("servers: not ascending, none, or hops not one for each pair");
  }
  const auto place = [&](int server) {
    return std::lower_bound(servers.begin(), servers.end(), server) - servers.begin();
  };
  std::vector<PyRing> rings;
  for (const Ring& ring :
       ringsOfGroup(toGroups(groups), servers, both_ways, [&](int source, int target) {
         return hops[place(source) * servers.size() + place(target)];
       })) {
    rings.emplace_back(ring.servers, ring.share);
  }
  return rings;
}

// MaxMinRates with the arrays that it refers to.
class OwnedRates {
 public:
  OwnedRates(std::vector<double> capacity, const std::vector<PyPath>& paths)
      : capacity_(std::move(capacity)), rates_(capacity_, paths_) {
    for (double bytes_per_s : capacity_) checkAmount("capacity", bytes_per_s);
    for (const PyPath& path : paths) {
      std::vector<LinkUse> uses;
      for (const auto& [link, load] : path) {
        checkAmount("paths: load", load);
        if (link < 0 || link >= static_cast<int>(capacity_.size())) {
          throw std::invalid_argument("paths: link " + std::to_string(link) + " does not exist");
        }
        uses.push_back({link, load});
      }
      paths_.add(std::move(uses));
      count_.push_back(0);
    }
    rates_.reset(paths_);
  }

  void change(int path, int delta) {
    if (path < 0 || path >= paths_.size()) throw std::invalid_argument("path: does not exist");
    if (count_[path] + delta < 0) throw std::invalid_argument("delta: leaves a negative count");
    count_[path] += delta;
    rates_.change(path, delta);
  }

  // The rate of every path, and the number of links whose level the solve had to find.
  std::pair<std::vector<double>, size_t> solve() {
    rates_.solve();
    const size_t visited = rates_.solvedLinks().size();
    std::vector<double> rates;
    for (int path = 0; path < paths_.size(); ++path) rates.push_back(rates_.rate(path));
    return {rates, visited};
  }

 private:
  static void checkAmount(const char* field, double value) {
    if (std::isfinite(value) && value > 0) return;
    throw std::invalid_argument(std::string(field) + " " + std::to_string(value) +
                                " is not above 0 and finite");
  }

  std::vector<double> capacity_;
  std::vector<int> count_;
  PathTable paths_;
  MaxMinRates rates_;
};

void bindSimulator(py::module_& module) {
  py::class_<RoutedNetwork, std::shared_ptr<RoutedNetwork>>(module, "RoutedNetwork")
      .def(py::init(&makeNetwork), py::arg("servers"), py::arg("links"), py::arg("bytes_per_s"),
           py::arg("latency_s"), py::arg("routes"), py::arg("groups"),
           py::arg("by_offset") = std::vector<PyRoute>{}, py::arg("next_hops") = std::vector<int>{})
      .def_static(
          "ideal_switch",
          [](int servers, double bytes_per_s, double latency_s) {
            return std::make_shared<RoutedNetwork>(
                RoutedNetwork::idealSwitch(servers, bytes_per_s, latency_s));
          },
          py::arg("servers"), py::arg("bytes_per_s"), py::arg("latency_s"))
      .def("rings", &networkRings, py::arg("servers"));
  module.def("rings_of_group", &ringsOf, py::arg("groups"), py::arg("servers"),
             py::arg("both_ways"), py::arg("hops"));
  py::class_<OwnedRates>(module, "MaxMinRates")
      .def(py::init<std::vector<double>, const std::vector<PyPath>&>(), py::arg("capacity"),
           py::arg("paths"))
      .def("change", &OwnedRates::change, py::arg("path"), py::arg("delta"))
      .def("solve", &OwnedRates::solve);
}

}  // namespace
}  // namespace topoopt

PYBIND11_MODULE(_core, module) {
  module.doc() =
      "Flow-level cost and strategy search; torch_topoopt.sim and .search are its front.";
  topoopt::bindSim(module);
  topoopt::bindIteration(module);
  topoopt::bindSimulator(module);
  topoopt::bindIterationTasks(module);
  topoopt::bindSearch(module);
  topoopt::bindArchitectures(module);
  topoopt::bindRouting(module);
  topoopt::bindPacket(module);
  topoopt::bindTopology(module);
}
