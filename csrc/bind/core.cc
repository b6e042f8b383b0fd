// The extension module torch_topoopt._core: planner and simulators, independent of torch.

#include <pybind11/functional.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "bind/architectures.h"
#include "bind/iteration.h"
#include "bind/plan_types.h"
#include "bind/sim.h"
#include "sim/flow/max_min_rates.h"
#include "sim/iteration/routed_network.h"

namespace py = pybind11;

namespace topoopt {

void bindAllocation(py::module_& module);             // bind/allocation.cc
void bindCollectives(py::module_& module);            // bind/collectives.cc
Collective collectiveNamed(const std::string& name);  // bind/collectives.cc
void bindIterationTasks(py::module_& module);         // bind/iteration_tasks.cc
void bindMaxMin(py::module_& module);                 // bind/max_min.cc
void bindRouteControl(py::module_& module);           // bind/route_control.cc
void bindRouting(py::module_& module);                // bind/routing.cc
void bindSearch(py::module_& module);                 // bind/search.cc
void bindTopology(py::module_& module);               // bind/topology.cc

namespace {

using PyPath = std::vector<std::pair<int, double>>;

std::shared_ptr<RoutedNetwork> makeNetwork(int servers, const std::vector<plan::LinkPorts>& links,
                                           double bytes_per_s, double latency_s,
                                           std::vector<plan::Route> routes,
                                           std::vector<plan::AllReduceGroup> groups,
                                           std::vector<plan::StrideRoute> by_offset,
                                           std::vector<int> next_hops) {
  return std::make_shared<RoutedNetwork>(servers, links, bytes_per_s, latency_s, std::move(routes),
                                         std::move(groups),
                                         RouteRules{std::move(by_offset), std::move(next_hops)});
}

// `hops` are between each two of `servers` (ascending), row by row.
std::vector<plan::Ring> ringsOf(std::vector<plan::AllReduceGroup> groups,
                                const std::vector<int>& servers, bool both_ways,
                                const std::function<std::vector<int>()>& hops) {
  if (servers.empty() || !std::is_sorted(servers.begin(), servers.end())) {
    throw std::invalid_argument("servers: not ascending, or none");
  }
  for (plan::AllReduceGroup& group : groups) std::sort(group.servers.begin(), group.servers.end());
  const auto place = [&](int server) {
    return std::lower_bound(servers.begin(), servers.end(), server) - servers.begin();
  };
  std::vector<int> table;
  return ringsOfGroup(groups, servers, both_ways, [&](int source, int target) {
    if (table.empty()) table = hops();
    if (table.size() != servers.size() * servers.size()) {
      throw std::invalid_argument("hops: not one for each pair of servers");
    }
    return table[place(source) * servers.size() + place(target)];
  });
}

// MaxMinRates and the arrays that it references.
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

  // Returns the rate of every path, and the number of solved link levels.
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

// Sorted; throws std::invalid_argument unless they are two or more servers.
std::vector<int> groupOf(const RoutedNetwork& network, std::vector<int> servers) {
  std::sort(servers.begin(), servers.end());
  if (servers.size() < 2 || servers.front() < 0 || servers.back() >= network.servers() ||
      std::ranges::adjacent_find(servers) != servers.end()) {
    throw std::invalid_argument("servers: not two or more different ones of 0.." +
                                std::to_string(network.servers() - 1));
  }
  return servers;
}

using LinkRates = std::map<std::pair<int, int>, double>;  // by source and target

std::vector<LinkRates> packedShares(const std::vector<int>& servers, const LinkRates& rates) {
  std::vector<RatedLink> links;
  for (const auto& [ends, rate] : rates) links.push_back({ends.first, ends.second, rate});
  std::vector<LinkRates> shares;
  const py::gil_scoped_release release;
  for (const LinkPass& pass : packedAllReduce(servers, links).passes) {
    LinkRates& of_pass = shares.emplace_back();
    for (const LinkShare& send : pass.sends) of_pass[{send.source, send.target}] = send.share;
  }
  return shares;
}

void bindSchedules(py::class_<RoutedNetwork, std::shared_ptr<RoutedNetwork>>& network) {
  network
      .def(
          "add_schedules",
          [](RoutedNetwork& network, const std::vector<std::pair<int, int>>& ends,
             const CostModel& cost, const std::string& algorithm, int ranks_per_server) {
            network.addSchedules(ends, cost, algorithmNamed(algorithm), ranks_per_server);
          },
          py::arg("ends"), py::arg("cost"), py::arg("algorithm") = "auto",
          py::arg("ranks_per_server") = 1,
          "On a direct network, groups choose as the backend does, by `cost` (without a rate: that "
          "of the slowest link) or as TOPOOPT_ALGORITHM says. Over switches, they also choose "
          "among their rings in both directions and exchanges over routes. Link i joins the nodes "
          "`ends[i]`; those from the number of servers on are switches.")
      .def(
          "all_reduce_algorithm",
          [](RoutedNetwork& network, const std::vector<int>& servers, double size_bytes) {
            return network.group(groupOf(network, servers)).algorithm(size_bytes);
          },
          py::arg("servers"), py::arg("size_bytes"),
          "The backend's choice on a direct network with schedules; else empty.")
      .def(
          "all_reduce_seconds",
          [](RoutedNetwork& network, const std::vector<int>& servers, double size_bytes) {
            return network.allReduce(groupOf(network, servers), size_bytes).seconds(size_bytes);
          },
          py::arg("servers"), py::arg("size_bytes"), "Of one alone, on its choice.")
      .def(
          "all_reduce_link_bytes",
          [](RoutedNetwork& network, const std::vector<int>& servers, double size_bytes) {
            return network.allReduceLinkBytes(groupOf(network, servers), size_bytes);
          },
          py::arg("servers"), py::arg("size_bytes"), "Of one, on its choice; by link.")
      .def(
          "collective_link_bytes",
          [](RoutedNetwork& network, const std::string& collective, std::vector<int> members,
             size_t size_bytes, int root) {
            std::sort(members.begin(), members.end());
            if (members.empty() || members.front() < 0 || members.back() >= network.servers()) {
              throw std::invalid_argument("members: not on servers 0.." +
                                          std::to_string(network.servers() - 1));
            }
            if (root < 0 || root >= static_cast<int>(members.size())) {
              throw std::invalid_argument("root: " + std::to_string(root) + " is not a member");
            }
            return network.collectiveLinkBytes(collectiveNamed(collective), members, size_bytes,
                                               root);
          },
          py::arg("collective"), py::arg("members"), py::arg("size_bytes"), py::arg("root") = 0,
          "Bytes by link of a collective on `size_bytes` of all blocks together, as the backend "
          "runs it on a direct network with schedules. `members` has the server of each; `root` is "
          "the number of one.");
}

void bindRoutedNetwork(py::module_& module) {
  py::class_<RoutedNetwork, std::shared_ptr<RoutedNetwork>> network(
      module, "RoutedNetwork",
      "Links, routes per pair, rings per group. One object must not be used from two threads. A "
      "pair "
      "without a route follows `by_offset`, or `next_hops[source * servers + target]`.");
  network
      .def(py::init(&makeNetwork), py::arg("servers"), py::arg("links"), py::arg("bytes_per_s"),
           py::arg("latency_s"), py::arg("routes"), py::arg("groups"),
           py::arg("by_offset") = py::tuple(), py::arg("next_hops") = py::tuple())
      .def_static(
          "ideal_switch",
          [](int servers, double bytes_per_s, double latency_s) {
            return std::make_shared<RoutedNetwork>(
                RoutedNetwork::idealSwitch(servers, bytes_per_s, latency_s));
          },
          py::arg("servers"), py::arg("bytes_per_s"), py::arg("latency_s"),
          "A switch that never blocks, with one link to and from each server.")
      .def(
          "rings",
          [](const RoutedNetwork& network, std::vector<int> servers) {
            std::sort(servers.begin(), servers.end());
            return network.rings(servers);
          },
          py::arg("servers"), "Those that an AllReduce among `servers` uses.")
      .def(
          "grid",
          [](const RoutedNetwork& network, std::vector<int> servers) {
            std::sort(servers.begin(), servers.end());
            return network.grid(servers);
          },
          py::arg("servers"), "The rows along which it may go instead; empty: there are none.")
      .def(
          "takes_grid",
          [](RoutedNetwork& network, std::vector<int> servers, double size_bytes) {
            std::sort(servers.begin(), servers.end());
            return !network.grid(servers).empty() &&
                   !network.allReduce(servers, size_bytes).parts.empty();
          },
          py::arg("servers"), py::arg("size_bytes"),
          "Whether an AllReduce of so many bytes does so, because that is faster.");
  bindSchedules(network);
}

void bindSimulator(py::module_& module) {
  module.def(
      "exchange_pairs",
      [](std::vector<int> servers) {
        std::sort(servers.begin(), servers.end());
        std::vector<std::pair<int, int>> pairs;
        const LinkSchedule schedule = exchangeAmong(servers);
        for (const LinkShare& send : schedule.passes[0].sends) {
          pairs.emplace_back(send.source, send.target);
        }
        return pairs;
      },
      py::arg("servers"), "The pairs that an AllReduce by exchanges among `servers` needs.");
  module.def("packed_all_reduce", &packedShares, py::arg("servers"), py::arg("rates"),
             "The AllReduce among `servers` (ascending) with the least time of the busiest link: "
             "the bytes per byte on each link of its ReduceScatter and of its AllGather. `rates` "
             "has the rates of links by source and target.");
  module.def(
      "rings_of_group", &ringsOf, py::arg("groups"), py::arg("servers"), py::arg("both_ways"),
      py::arg("hops").none(false),
      "The rings that `servers` (ascending) use. `hops` gives the hops between each two, row by "
      "row; it is called if no planned group holds them.");
  py::class_<OwnedRates>(
      module, "MaxMinRates",
      "Max-min fair rates of the flows on given paths, each a list of (link, load).")
      .def(py::init<std::vector<double>, const std::vector<PyPath>&>(), py::arg("capacity"),
           py::arg("paths"))
      .def("change", &OwnedRates::change, py::arg("path"), py::arg("delta"))
      .def("solve", &OwnedRates::solve, "(rate of every path, number of links visited)");
}

}  // namespace
}  // namespace topoopt

PYBIND11_MODULE(_core, module) {
  module.doc() =
      "Flow-level cost and strategy search; torch_topoopt.sim and .search are its front.";
  topoopt::bindSim(module);
  topoopt::bindRoutedNetwork(module);
  topoopt::bindSimulator(module);
  topoopt::bindIteration(module);
  topoopt::bindIterationTasks(module);
  topoopt::bindSearch(module);
  topoopt::bindArchitectures(module);
  topoopt::bindRouteControl(module);
  topoopt::bindMaxMin(module);
  topoopt::bindRouting(module);
  topoopt::bindPacket(module);
  topoopt::bindCollectives(module);
  topoopt::bindTopology(module);
  topoopt::bindAllocation(module);
}
