// The extension module torch_topoopt._core: planner and simulators. Needs no torch at run time.

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "bind/architectures.h"
#include "bind/iteration.h"
#include "bind/sim.h"
#include "sim/flow/flow_simulator.h"
#include "sim/flow/max_min_rates.h"
#include "sim/iteration/routed_network.h"

namespace py = pybind11;

namespace topoopt {

void bindRouting(py::module_& module);   // bind/routing.cc
void bindSearch(py::module_& module);    // bind/search.cc
void bindTopology(py::module_& module);  // bind/topology.cc

namespace {

using ServerList = std::vector<int>;
using PyRoute = std::pair<ServerList, double>;
using PyRing = std::pair<ServerList, double>;
using PyGroup = std::pair<ServerList, std::vector<PyRing>>;
using PyPath = std::vector<std::pair<int, double>>;
// kind, device, seconds or bytes, latency_s, priority, links, after
using PyTask =
    std::tuple<std::string, int, double, double, int, std::vector<int>, std::vector<int>>;

std::shared_ptr<RoutedNetwork> makeNetwork(
    int servers, const std::vector<std::pair<int, int>>& links, double bytes_per_s,
    double latency_s, const std::vector<PyRoute>& routes, const std::vector<PyGroup>& groups,
    const std::vector<PyRoute>& by_offset, std::vector<int> next_hops) {
  std::vector<Route> plain_routes;
  for (const auto& [hops, weight] : routes) plain_routes.push_back({hops, weight});
  std::vector<Group> plain_groups;
  for (const auto& [members, rings] : groups) {
    Group group{members, {}};
    for (const auto& [order, share] : rings) group.rings.push_back({order, share});
    plain_groups.push_back(std::move(group));
  }
  RouteRules rules{{}, std::move(next_hops)};
  for (const auto& [strides, weight] : by_offset) rules.by_offset.push_back({strides, weight});
  return std::make_shared<RoutedNetwork>(servers, links, bytes_per_s, latency_s,
                                         std::move(plain_routes), std::move(plain_groups),
                                         std::move(rules));
}

std::vector<PyRing> networkRings(const RoutedNetwork& network, ServerList servers) {
  std::sort(servers.begin(), servers.end());
  std::vector<PyRing> rings;
  for (const Ring& ring : network.rings(servers)) rings.emplace_back(ring.servers, ring.share);
  return rings;
}

// The task graph of a list of tasks; every flow gets a path of its own, or shares that of an
// earlier flow over the same links.
void addTasks(const std::vector<PyTask>& tasks, int links, PathTable& paths, TaskGraph& graph) {
  std::map<std::vector<int>, int> path_of_links;
  for (const auto& [kind, device, amount, latency_s, priority, hops, after] : tasks) {
    const std::string where = "tasks[" + std::to_string(graph.size()) + "]";
    if (kind == "compute") {
      graph.addCompute(device, amount, priority);
    } else if (kind == "delay") {
      graph.addDelay(amount);
    } else if (kind == "flow") {
      std::vector<LinkUse> uses;
      for (int link : hops) {
        if (link < 0 || link >= links) {
          throw std::invalid_argument(where + ".links: link " + std::to_string(link) +
                                      " is not in 0.." + std::to_string(links - 1));
        }
        uses.push_back({link, 1.0});
      }
      if (uses.empty()) throw std::invalid_argument(where + ".links: a flow needs a link");
      const auto [it, is_new] = path_of_links.try_emplace(hops, -1);
      if (is_new) it->second = paths.add(std::move(uses));
      graph.addFlow(it->second, amount, latency_s);
    } else {
      throw std::invalid_argument(where + ".kind: '" + kind + "' is not compute, flow or delay");
    }
    for (int before : after) graph.addDependency(before, graph.size() - 1);
  }
}

py::tuple simulateTasks(const std::vector<double>& bytes_per_s, int devices,
                        const std::vector<PyTask>& tasks, std::optional<bool> fold,
                        double devices_at_once) {
  PathTable paths;
  TaskGraph graph;
  graph.setDevicesAtOnce(devices_at_once);
  addTasks(tasks, static_cast<int>(bytes_per_s.size()), paths, graph);
  FlowSimulator simulator(bytes_per_s, paths, devices, foldingOf(fold));
  const Outcome* outcome = nullptr;
  {
    py::gil_scoped_release release;
    outcome = &simulator.run(graph);
  }
  return py::make_tuple(outcome->makespan_s, outcome->finish_s, outcome->device_busy_s,
                        outcome->link_bytes);
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
    rates_.reset();
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
  py::class_<OwnedRates>(module, "MaxMinRates")
      .def(py::init<std::vector<double>, const std::vector<PyPath>&>(), py::arg("capacity"),
           py::arg("paths"))
      .def("change", &OwnedRates::change, py::arg("path"), py::arg("delta"))
      .def("solve", &OwnedRates::solve);
  module.def("simulate_tasks", &simulateTasks, py::arg("bytes_per_s"), py::arg("devices"),
             py::arg("tasks"), py::arg("fold") = py::none(),
             py::arg("devices_at_once") = std::numeric_limits<double>::infinity());
}

}  // namespace
}  // namespace topoopt

PYBIND11_MODULE(_core, module) {
  module.doc() =
      "Flow-level cost and strategy search; torch_topoopt.sim and .search are its front.";
  topoopt::bindIteration(module);
  topoopt::bindSimulator(module);
  topoopt::bindSearch(module);
  topoopt::bindArchitectures(module);
  topoopt::bindSim(module);
  topoopt::bindRouting(module);
  topoopt::bindPacket(module);
  topoopt::bindTopology(module);
}
