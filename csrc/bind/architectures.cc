// Bindings of general networks with switches, for torch_topoopt.architectures.

#include "bind/architectures.h"

#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <cstdint>
#include <memory>
#include <stdexcept>
#include <utility>
#include <vector>

#include "bind/plan_types.h"
#include "sim/iteration/routed_network.h"

namespace py = pybind11;

namespace topoopt {
namespace {

std::shared_ptr<RoutedNetwork> networkOfPaths(int servers, std::vector<double> capacity,
                                              const Array<int64_t>& source,
                                              const Array<int64_t>& target,
                                              const Array<double>& latency_s,
                                              const Array<int64_t>& begin,
                                              const Array<int64_t>& link, const Array<double>& load,
                                              std::vector<plan::AllReduceGroup> groups) {
  return std::make_shared<RoutedNetwork>(RoutedNetwork::ofPaths(
      servers, std::move(capacity), toPairPaths(source, target, latency_s, begin, link, load),
      std::move(groups)));
}

}  // namespace

std::vector<PairPath> toPairPaths(const Array<int64_t>& source, const Array<int64_t>& target,
                                  const Array<double>& latency_s, const Array<int64_t>& begin,
                                  const Array<int64_t>& link, const Array<double>& load) {
  const py::ssize_t count = source.size();
  if (target.size() != count || latency_s.size() != count || begin.size() != count + 1 ||
      link.size() != load.size()) {
    throw std::invalid_argument("pairs: arrays of different lengths");
  }
  std::vector<PairPath> pairs;
  pairs.reserve(count);
  for (py::ssize_t i = 0; i < count; ++i) {
    if (begin.at(0) != 0 || begin.at(i) > begin.at(i + 1) || begin.at(i + 1) > link.size()) {
      throw std::invalid_argument("begin: does not ascend from 0 to the number of link uses");
    }
    PairPath pair{
        static_cast<int>(source.at(i)), static_cast<int>(target.at(i)), {}, latency_s.at(i)};
    for (int64_t use = begin.at(i); use < begin.at(i + 1); ++use) {
      pair.uses.push_back({static_cast<int>(link.at(use)), load.at(use)});
    }
    pairs.push_back(std::move(pair));
  }
  return pairs;
}

void bindArchitectures(py::module_& module) {
  module.def(
      "network_of_paths", &networkOfPaths, py::arg("servers"), py::arg("bytes_per_s"),
      py::arg("source"), py::arg("target"), py::arg("latency_s"), py::arg("begin"), py::arg("link"),
      py::arg("load"), py::arg("groups"),
      "Any network: pair i loads link[begin[i]:begin[i + 1]] by load[...] bytes for each byte");
}

}  // namespace topoopt
