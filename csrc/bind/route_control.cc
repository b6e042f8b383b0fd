// Bindings of routes through switched networks, for torch_topoopt.route_control.

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "route_control/annealing.h"
#include "route_control/balanced_colouring.h"
#include "route_control/greedy.h"
#include "route_control/improvement.h"
#include "route_control/path_assignment.h"
#include "route_control/plain_report.h"

namespace py = pybind11;

namespace topoopt {
namespace {

// Per pair: its paths as lists of links.
using PairPaths = std::vector<std::vector<std::vector<int>>>;

std::shared_ptr<SwitchedPaths> tableOf(std::vector<double> capacity, const PairPaths& pairs) {
  auto table = std::make_shared<SwitchedPaths>();
  table->capacity = std::move(capacity);
  table->first_path = table->first_link = {0};
  for (const auto& paths : pairs) {
    for (const auto& links : paths) {
      table->links.insert(table->links.end(), links.begin(), links.end());
      table->first_link.push_back(static_cast<int>(table->links.size()));
    }
    table->first_path.push_back(static_cast<int>(table->first_link.size()) - 1);
  }
  table->check();
  return table;
}

std::vector<RoutedFlow> flowsOf(const SwitchedPaths& table, const std::vector<int>& pairs,
                                const std::vector<double>& demands) {
  if (pairs.size() != demands.size()) throw std::invalid_argument("demands: not one for each flow");
  std::vector<RoutedFlow> flows;
  for (size_t i = 0; i < pairs.size(); ++i) flows.push_back({pairs[i], demands[i]});
  checkFlows(table, flows);
  return flows;
}

// Converts path ids to indices among the paths of the flow's pair.
PathChoice relative(const SwitchedPaths& table, const std::vector<RoutedFlow>& flows,
                    PathChoice choice) {
  for (size_t i = 0; i < flows.size(); ++i) choice[i] -= table.first_path[flows[i].pair];
  return choice;
}

PathChoice absolute(const SwitchedPaths& table, const std::vector<RoutedFlow>& flows,
                    PathChoice choice) {
  if (choice.size() != flows.size()) throw std::invalid_argument("choice: not one for each flow");
  for (size_t i = 0; i < flows.size(); ++i) {
    if (choice[i] < 0 || choice[i] >= table.pathCount(flows[i].pair)) {
      throw std::invalid_argument("choice: path " + std::to_string(choice[i]) + " is not one");
    }
    choice[i] += table.first_path[flows[i].pair];
  }
  return choice;
}

using IntPairs = std::vector<std::pair<int, int>>;

void bindPathAssignment(py::module_& module) {
  py::class_<AssignmentChange>(module, "AssignmentChange",
                               "Flows that end, kinds of flows that start, (flow, kind) that "
                               "change, and all links that are dead from now on, or None.")
      .def(py::init([](std::vector<int> ended, std::vector<int> started, IntPairs kinds,
                       std::optional<std::vector<int>> dead) {
             return AssignmentChange{std::move(ended), std::move(started), std::move(kinds),
                                     std::move(dead)};
           }),
           py::arg("ended"), py::arg("started"), py::arg("kinds"), py::arg("dead"));
  py::class_<AssignmentResult>(module, "AssignmentResult",
                               "Numbers of new flows; (flow, path) of flows that moved, -1 where "
                               "none is left; (flow, rate) where another one is published.")
      .def_readonly("started", &AssignmentResult::started)
      .def_readonly("moved", &AssignmentResult::moved)
      .def_readonly("rates", &AssignmentResult::rates)
      .def("__len__", [](const AssignmentResult& result) {
        return result.started.size() + result.moved.size() + result.rates.size();
      });
  py::class_<PathAssignment>(module, "PathAssignment",
                             "The flows of a network that come and go, and the path of each.")
      .def(py::init([](int tors, int spines, IntPairs links, std::vector<double> capacity,
                       const std::string& scheme, bool limits_rates) {
             return PathAssignment({tors, spines, std::move(links), std::move(capacity)},
                                   pathScheme(scheme), limits_rates);
           }),
           py::arg("tors"), py::arg("spines"), py::arg("links"), py::arg("capacity"),
           py::arg("scheme"), py::arg("limits_rates"))
      .def(
          "copy", [](const PathAssignment& assignment) { return PathAssignment(assignment); },
          py::call_guard<py::gil_scoped_release>())
      .def("add_kind", &PathAssignment::addKind, py::arg("source"), py::arg("target"),
           py::arg("paths"), "The number of a new kind of flows; paths are lists of links.")
      .def("first_path", &PathAssignment::firstPath, py::arg("kind"))
      .def("cut_off", &PathAssignment::cutOff, py::arg("dead"),
           "Kinds that have no live path with exactly these links dead.")
      .def("restore", &PathAssignment::restore, py::arg("kinds"), py::arg("paths"),
           py::arg("rates"), py::arg("dead"), "Numbers of flows that are as they were.")
      .def("change", &PathAssignment::change, py::arg("change"), py::arg("threads"),
           py::call_guard<py::gil_scoped_release>())
      .def("adopt", &PathAssignment::adopt, py::arg("change"), py::arg("result"),
           "A change whose result a copy has found.")
      .def_property_readonly("loads", &PathAssignment::loads)
      .def(
          "shares",
          [](const PathAssignment& assignment) {
            std::vector<double> shares;
            {
              const py::gil_scoped_release released;
              shares = assignment.shares();
            }
            return py::array_t<double>(static_cast<py::ssize_t>(shares.size()), shares.data());
          },
          "Of each flow by its number its max-min fair share.");
}

void bindSwitchedPaths(py::module_& module) {
  py::class_<SwitchedPaths, std::shared_ptr<SwitchedPaths>>(
      module, "SwitchedPaths",
      "Capacities of links, and of every pair its paths as lists of links.")
      .def(py::init(&tableOf), py::arg("capacity"), py::arg("pairs"))
      .def(
          "loads",
          [](const SwitchedPaths& table, const std::vector<int>& pairs,
             const std::vector<double>& demands, PathChoice choice) {
            const auto flows = flowsOf(table, pairs, demands);
            choice = absolute(table, flows, std::move(choice));
            SwitchedPathLoads loads(table);
            for (size_t i = 0; i < flows.size(); ++i) loads.add(choice[i], flows[i].demand);
            return loads.loads();
          },
          py::arg("pairs"), py::arg("demands"), py::arg("choice"), "The demand on every link.")
      .def(
          "greedy",
          [](const SwitchedPaths& table, const std::vector<int>& pairs,
             const std::vector<double>& demands, const std::vector<int>& order, int threads) {
            auto flows = flowsOf(table, pairs, demands);
            const py::gil_scoped_release released;
            return relative(table, flows, greedyPaths(table, flows, order, threads));
          },
          py::arg("pairs"), py::arg("demands"), py::arg("order"), py::arg("threads"),
          "A path of each flow, chosen in that order.")
      .def(
          "annealed",
          [](const SwitchedPaths& table, const std::vector<int>& pairs,
             const std::vector<double>& demands, PathChoice choice, int64_t steps, uint64_t seed) {
            const auto flows = flowsOf(table, pairs, demands);
            choice = absolute(table, flows, std::move(choice));
            const py::gil_scoped_release released;
            annealPaths(table, flows, steps, seed, choice);
            return relative(table, flows, std::move(choice));
          },
          py::arg("pairs"), py::arg("demands"), py::arg("choice"), py::arg("steps"),
          py::arg("seed"))
      .def(
          "improved",
          [](const SwitchedPaths& table, const std::vector<int>& pairs,
             const std::vector<double>& demands, PathChoice choice, double bound, int64_t moves,
             uint64_t seed) {
            const auto flows = flowsOf(table, pairs, demands);
            choice = absolute(table, flows, std::move(choice));
            const py::gil_scoped_release released;
            improvePaths(table, flows, bound, moves, seed, choice);
            return relative(table, flows, std::move(choice));
          },
          py::arg("pairs"), py::arg("demands"), py::arg("choice"), py::arg("bound"),
          py::arg("moves"), py::arg("seed"));
}

// Request, job, and one list of each field of the flows.
py::object plainReport(const py::bytes& body, size_t longest_id) {
  const auto report = readPlainReport(std::string_view(body), longest_id);
  if (!report) return py::none();
  const size_t count = report->flows.size();
  py::list ids(count), sources(count), targets(count), sizes(count), periods(count);
  py::str source;
  for (size_t i = 0; i < count; ++i) {
    const PlainFlow& flow = report->flows[i];
    // Hosts report their own flows, so one text is often that of all sources.
    if (i == 0 || flow.source != report->flows[i - 1].source) source = py::str(flow.source);
    ids[i] = py::str(flow.id);
    sources[i] = source;
    targets[i] = py::str(flow.target);
    sizes[i] = py::int_(flow.bytes);
    periods[i] = py::cast(flow.period_s);
  }
  return py::make_tuple(py::str(report->request), py::str(report->job), ids, sources, targets,
                        sizes, periods);
}

}  // namespace

void bindRouteControl(py::module_& module) {
  bindPathAssignment(module);
  bindSwitchedPaths(module);
  module.def(
      "coloured_pairs",
      [](int vertices, const IntPairs& ends, const std::vector<int>& pairs, int colours) {
        const py::gil_scoped_release released;
        IntPairs edges;
        edges.reserve(pairs.size());
        for (const int pair : pairs) edges.push_back(ends.at(pair));
        return balancedColouring(vertices, edges, colours);
      },
      py::arg("vertices"), py::arg("ends"), py::arg("pairs"), py::arg("colours"),
      "The same of edges that are given as numbers of pairs (source, target).");
  module.def("plain_report", &plainReport, py::arg("body"), py::arg("longest_id"),
             "A report of flows in the common form: request, job, ids, sources, targets, bytes and "
             "periods of the flows; None for any other body.");
  module.def("balanced_colouring", &balancedColouring, py::arg("vertices"), py::arg("edges"),
             py::arg("colours"), py::call_guard<py::gil_scoped_release>(),
             "A colour of each edge (source, target) of a bipartite multigraph.");
}

}  // namespace topoopt
