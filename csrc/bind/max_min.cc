// Bindings of max-min fair rates of flows, without a simulation.

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cmath>
#include <map>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "sim/flow/max_min_rates.h"
#include "sim/flow/ring_transfers.h"

namespace py = pybind11;

namespace topoopt {
namespace {

using FlowRates = std::pair<std::vector<double>, std::vector<int>>;

void checkLinks(const std::vector<double>& capacity, const std::vector<std::vector<int>>& paths) {
  for (const double rate : capacity) {
    if (!(rate > 0) || !std::isfinite(rate)) {
      throw std::invalid_argument("capacity: " + std::to_string(rate) + " is not above 0");
    }
  }
  const int links = static_cast<int>(capacity.size());
  for (const auto& path : paths) {
    for (const int link : path) {
      if (link < 0 || link >= links) {
        throw std::invalid_argument("paths: there is no link " + std::to_string(link));
      }
    }
  }
}

// Flows over the same links are one path with a count.
FlowRates maxMinRates(const std::vector<double>& capacity,
                      const std::vector<std::vector<int>>& paths) {
  checkLinks(capacity, paths);
  PathTable table;
  std::map<std::vector<int>, int> known;
  std::vector<int> path_of;
  for (const auto& links : paths) {
    const auto [place, is_new] = known.try_emplace(links, table.size());
    if (is_new) {
      std::vector<LinkUse> uses;
      for (const int link : links) uses.push_back({link, 1.0});
      table.add(std::move(uses));
    }
    path_of.push_back(place->second);
  }
  MaxMinRates rates(capacity, table);
  for (const int path : path_of) rates.change(path, 1);
  rates.solveAnew();
  FlowRates found;
  for (const int path : path_of) {
    found.first.push_back(rates.rate(path));
    found.second.push_back(rates.bottleneck(path));
  }
  return found;
}

}  // namespace

void bindMaxMin(py::module_& module) {
  module.def("max_min_rates", &maxMinRates, py::arg("capacity"), py::arg("paths"),
             py::call_guard<py::gil_scoped_release>(),
             "Of each flow its max-min fair rate, in the unit of `capacity`, and the link that "
             "holds it back. `paths` are lists of links, one for each flow.");
  py::class_<RingTransfers>(
      module, "RingTransfers",
      "AllReduce rings on shared links of `capacity` bytes per second: in each of its rounds every "
      "hop of a ring sends, and the next round begins when all have.")
      .def(py::init<std::vector<double>>(), py::arg("capacity"))
      .def("start", &RingTransfers::start, py::arg("hops"), py::arg("size_bytes"),
           py::arg("rounds"), "The number of a ring that begins now; `hops` are lists of links.")
      .def("reroute", &RingTransfers::reroute, py::arg("ring"), py::arg("hops"),
           "The hops of `ring` go on over these paths.")
      .def("advance", &RingTransfers::advance, py::arg("until_s"),
           py::call_guard<py::gil_scoped_release>(),
           "Goes on until rings end, or `until_s`. The rings that ended then.")
      .def_property_readonly("now_s", &RingTransfers::now)
      .def(
          "ended_flows",
          [](const RingTransfers& transfers, int ring) {
            const EndedFlows& ended = transfers.endedFlows(ring);
            return std::make_tuple(ended.count, ended.seconds, ended.bytes_per_s, ended.bytes);
          },
          py::arg("ring"),
          "Of the flows of `ring` that ended: their number, and sums of their seconds, of their "
          "rates in bytes per second, and of their bytes.");
}

}  // namespace topoopt
