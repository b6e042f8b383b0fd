// Topologies for Python: hop counts and the search over unions of rings. torch_topoopt.topology is
// the front.

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstdint>
#include <map>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "bind/architectures.h"
#include "bind/bytes_of_pairs.h"
#include "topology/demand_circuits.h"
#include "topology/hop_counts.h"
#include "topology/ring_search.h"
#include "topology/shortest_path_loads.h"

namespace py = pybind11;

namespace topoopt {
namespace {

using Links = std::vector<std::pair<int, int>>;

HopSummary hopSummary(int servers, const Links& links) {
  py::gil_scoped_release release;
  std::vector<int> sources(servers > 0 ? servers : 0);
  for (int s = 0; s < servers; ++s) sources[s] = s;
  return HopCounter().summary(InLinks(servers, links), sources);
}

py::array_t<int16_t> hopMatrix(int servers, const Links& links) {
  if (servers > INT16_MAX) {
    throw std::invalid_argument("servers: " + std::to_string(servers) + " is more than " +
                                std::to_string(INT16_MAX));
  }
  std::vector<int16_t> hops;
  {
    py::gil_scoped_release release;
    hops = HopCounter().matrix(InLinks(servers, links));
  }
  return py::array_t<int16_t>({servers, servers}, hops.data());
}

template <typename Value>
std::vector<Value> listOf(const Array<Value>& values) {
  return {values.data(), values.data() + values.size()};
}

template <typename Value>
py::array_t<Value> arrayOf(const std::vector<Value>& values) {
  return py::array_t<Value>(values.size(), values.data());
}

ShortestPathLoads shortestPathLoads(int nodes, const Array<int32_t>& from, const Array<int32_t>& to,
                                    const Array<double>& rate) {
  if (from.ndim() != 1 || to.size() != from.size() || rate.size() != from.size()) {
    throw std::invalid_argument("edges: arrays of different lengths");
  }
  std::vector<RatedEdge> edges;
  edges.reserve(from.size());
  for (py::ssize_t e = 0; e < from.size(); ++e) {
    edges.push_back({from.data()[e], to.data()[e], rate.data()[e]});
  }
  return {nodes, std::move(edges)};
}

std::tuple<py::array_t<double>, double, int> loadsOf(const ShortestPathLoads& paths,
                                                     const Array<int32_t>& targets,
                                                     const Array<double>& weights,
                                                     const Array<double>& sent,
                                                     const Array<double>& lengths) {
  PathLoads found;
  {
    const auto goals = listOf(targets);
    const auto goal_weights = listOf(weights), from_nodes = listOf(sent), by = listOf(lengths);
    py::gil_scoped_release release;
    found = paths.loads(goals, goal_weights, from_nodes, by);
  }
  return {arrayOf(found.load), found.length, found.farthest};
}

std::pair<py::array_t<double>, std::vector<int>> loadsOfPairs(const ShortestPathLoads& paths,
                                                              const Array<int32_t>& sources,
                                                              const Array<int32_t>& targets,
                                                              const Array<double>& bytes) {
  if (targets.size() != sources.size() || bytes.size() != sources.size()) {
    throw std::invalid_argument("pairs: arrays of different lengths");
  }
  std::vector<PairBytes> pairs;
  for (py::ssize_t i = 0; i < sources.size(); ++i) {
    pairs.push_back({sources.data()[i], targets.data()[i], bytes.data()[i]});
  }
  std::pair<std::vector<double>, std::vector<int>> found;
  {
    py::gil_scoped_release release;
    found = paths.ofPairs(pairs);
  }
  return {arrayOf(found.first), std::move(found.second)};
}

std::tuple<py::array_t<int64_t>, py::array_t<int64_t>, py::array_t<double>, py::array_t<double>>
loadsOfEachPair(const ShortestPathLoads& paths, const Array<int32_t>& sources,
                const Array<int32_t>& targets, const Array<double>& latency_s) {
  if (targets.size() != sources.size()) {
    throw std::invalid_argument("pairs: arrays of different lengths");
  }
  Links pairs;
  for (py::ssize_t i = 0; i < sources.size(); ++i) {
    pairs.emplace_back(sources.data()[i], targets.data()[i]);
  }
  PairShares found;
  {
    const auto by_edge = listOf(latency_s);
    const py::gil_scoped_release release;
    found = paths.ofEachPair(pairs, by_edge);
  }
  return {arrayOf(found.begin), arrayOf(found.edge), arrayOf(found.load), arrayOf(found.latency_s)};
}

std::pair<std::vector<std::vector<int>>, Links> best(const RingSearch& search) {
  RingUnion found = search.best();
  return {std::move(found.rings), std::move(found.links)};
}

Links circuitsOf(int servers, int degree, const BytesOfPairs& unsatisfied, const Links& present,
                 bool halve) {
  const py::gil_scoped_release release;
  return circuitsFor(servers, degree, unsatisfied.bytes, present, halve);
}

Links connected(int servers, Links circuits, const BytesOfPairs& unsatisfied) {
  const py::gil_scoped_release release;
  connectParts(servers, circuits, unsatisfied.bytes);
  return circuits;
}

void bindCircuits(py::module_& module) {
  py::class_<BytesOfPairs>(module, "BytesOfPairs", "Bytes by ordered pair of servers.")
      .def(py::init([](const std::map<std::pair<int, int>, double>& bytes) {
             return BytesOfPairs{{bytes.begin(), bytes.end()}};
           }),
           py::arg("bytes"))
      .def("__len__", [](const BytesOfPairs& pairs) { return pairs.bytes.size(); })
      .def(
          "items", [](const BytesOfPairs& pairs) { return pairs.bytes; },
          "((source, target), bytes) in ascending order of pairs");
  module.def("circuits_for", &circuitsOf, py::arg("servers"), py::arg("degree"),
             py::arg("unsatisfied"), py::arg("present"), py::arg("halve"),
             "Circuits for the pairs with the most bytes, then those of `present` that have ports");
  module.def("connect_parts", &connected, py::arg("servers"), py::arg("circuits"),
             py::arg("unsatisfied"),
             "The circuits after two-edge replacement, which joins the parts of the network");
}

}  // namespace

void bindTopology(py::module_& module) {
  bindCircuits(module);
  py::class_<HopSummary>(module, "HopTotals", "The least hops of all ordered pairs of servers.")
      .def_readonly("sum", &HopSummary::sum)
      .def_readonly("diameter", &HopSummary::diameter)
      .def_readonly("unreachable", &HopSummary::unreachable, "Pairs without a path.");
  module.def("hop_summary", &hopSummary, py::arg("servers"), py::arg("links"));
  module.def("hop_matrix", &hopMatrix, py::arg("servers"), py::arg("links"),
             "Least hops [source][target] as an int16 array; -1 without a path");
  py::class_<ShortestPathLoads> loads(
      module, "ShortestPathLoads", "What edges carry if nodes send over paths of the fewest hops.");
  loads
      .def(py::init(&shortestPathLoads), py::arg("nodes"), py::arg("source"), py::arg("target"),
           py::arg("rate"))
      .def("loads", &loadsOf, py::arg("targets"), py::arg("weights"), py::arg("sent"),
           py::arg("lengths"),
           "(load by edge, length of all that is sent, most hops): node u sends sent[u] weights[i] "
           "to targets[i], split by rates, or over the least `lengths` where these are not empty");
  loads.def("of_pairs", &loadsOfPairs, py::arg("sources"), py::arg("targets"), py::arg("bytes"),
            "(load by edge, hops of every pair) of single pairs of nodes, split by rates");
  loads.def(
      "of_each_pair", &loadsOfEachPair, py::arg("sources"), py::arg("targets"),
      py::arg("latency_s"),
      "(begin, edge, load, latency_s): a byte of pair i puts load[u] bytes on edge[u] for u in "
      "begin[i]..begin[i + 1] and takes at most latency_s[i], over edges of those latencies");
  py::class_<RingSearch>(module, "RingSearch", "Annealing over unions of rings and links.")
      .def(py::init([](int servers, int symmetry, bool duplex, std::vector<std::vector<int>> rings,
                       Links links, std::vector<int64_t> weights, uint64_t seed) {
             return RingSearch({servers, symmetry, duplex, std::move(rings), std::move(links)},
                               std::move(weights), seed);
           }),
           py::arg("servers"), py::arg("symmetry"), py::arg("duplex"), py::arg("rings"),
           py::arg("links"), py::arg("weights"), py::arg("seed"))
      .def("anneal", &RingSearch::anneal, py::arg("work"), py::arg("hot"), py::arg("cold"),
           py::arg("enough") = 0, py::call_guard<py::gil_scoped_release>())
      .def("best", &best, "(rings, links) of the best union seen")
      .def_property_readonly("cost", &RingSearch::cost)
      .def_property_readonly("best_cost", &RingSearch::bestCost)
      .def_property_readonly("accepted", &RingSearch::accepted)
      .def_property_readonly("operations", &RingSearch::operations,
                             "On words, in all calls so far: what `work` counts.");
}

}  // namespace topoopt
