// Topologies for Python: hop counts and the search over unions of rings. torch_topoopt.topology is
// the front.

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstdint>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "topology/hop_counts.h"
#include "topology/ring_search.h"

namespace py = pybind11;

namespace topoopt {
namespace {

using Links = std::vector<std::pair<int, int>>;

std::tuple<int64_t, int, int64_t> hopSummary(int servers, const Links& links) {
  HopSummary found;
  {
    py::gil_scoped_release release;
    std::vector<int> sources(servers > 0 ? servers : 0);
    for (int s = 0; s < servers; ++s) sources[s] = s;
    found = HopCounter().summary(InLinks(servers, links), sources);
  }
  return {found.sum, found.diameter, found.unreachable};
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

std::pair<std::vector<std::vector<int>>, Links> best(const RingSearch& search) {
  RingUnion found = search.best();
  return {std::move(found.rings), std::move(found.links)};
}

}  // namespace

void bindTopology(py::module_& module) {
  module.def("hop_summary", &hopSummary, py::arg("servers"), py::arg("links"),
             "(sum of least hops over all ordered pairs, diameter, pairs without a path)");
  module.def("hop_matrix", &hopMatrix, py::arg("servers"), py::arg("links"),
             "Least hops [source][target] as an int16 array; -1 without a path");
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
