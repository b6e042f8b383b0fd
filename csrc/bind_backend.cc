// The extension module torch_topoopt._backend: the process group "topoopt".
//
// Python reads the Plan, opens the sockets of this server's links and hands both over as plain
// numbers; from then on everything happens in C++.

#include <pybind11/chrono.h>
#include <pybind11/functional.h>
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>
#include <torch/version.h>

#include <string>
#include <tuple>
#include <vector>

#include "backend/process_group.h"
#include "backend/session.h"

namespace py = pybind11;

namespace topoopt {
namespace {

// source, source port, target, target port, descriptor, whether this rank sends on it
using LinkTuple = std::tuple<int, int, int, int, int, bool>;
using RouteTuple = std::tuple<std::vector<int>, double>;
using RingTuple = std::tuple<std::vector<int>, double>;

std::shared_ptr<Session> makeSession(int rank, int size, const std::vector<LinkTuple>& links,
                                     const std::vector<RouteTuple>& routes, size_t window_bytes,
                                     std::function<void(const std::string&)> closed) {
  EndpointConfig config;
  config.rank = rank;
  config.size = size;
  config.window_bytes = window_bytes;
  for (const auto& [source, source_port, target, target_port, fd, sends] : links) {
    config.links.push_back({{source, source_port, target, target_port}, fd, sends});
  }
  for (const auto& [ranks, weight] : routes) config.routes.push_back({ranks, weight});
  return std::make_shared<Session>(std::move(config), std::move(closed));
}

c10::intrusive_ptr<ProcessGroupTopoopt> makeGroup(std::shared_ptr<Session> session,
                                                  const std::string& name, uint32_t channel,
                                                  int rank, std::vector<int> ranks,
                                                  const std::vector<RingTuple>& rings,
                                                  std::chrono::milliseconds timeout) {
  GroupConfig config{name, channel, rank, std::move(ranks), {}};
  for (const auto& [order, share] : rings) config.rings.push_back({order, share});
  return c10::make_intrusive<ProcessGroupTopoopt>(std::move(session), std::move(config), timeout);
}

py::list linkCounters(Session& session) {
  std::vector<std::pair<LinkSpec, LinkCounters>> counters;
  {
    py::gil_scoped_release no_gil;
    counters = session.endpoint()->counters();
  }
  py::list list;
  for (const auto& [spec, counter] : counters) {
    if (!spec.sends) continue;
    py::dict entry;
    entry["source"] = spec.name.source;
    entry["source_port"] = spec.name.source_port;
    entry["target"] = spec.name.target;
    entry["target_port"] = spec.name.target_port;
    entry["sent_bytes"] = counter.sent_bytes;
    entry["relayed_bytes"] = counter.relayed_bytes;
    entry["received_bytes"] = counter.received_bytes;
    entry["overhead_bytes"] = counter.overhead_bytes;
    entry["seconds"] = counter.busy_s;
    list.append(entry);
  }
  return list;
}

}  // namespace
}  // namespace topoopt

PYBIND11_MODULE(_backend, module) {
  using topoopt::ProcessGroupTopoopt;
  using topoopt::Session;
  module.doc() = "The process group \"topoopt\".";
  module.attr("torch_version") = TORCH_VERSION;
  py::module_::import("torch._C._distributed_c10d");

  py::class_<Session, std::shared_ptr<Session>>(
      module, "Session", "The links of this process, shared by all its process groups.")
      .def(py::init(&topoopt::makeSession), py::arg("rank"), py::arg("size"), py::arg("links"),
           py::arg("routes"), py::arg("window_bytes"), py::arg("closed"))
      .def("link_counters", &topoopt::linkCounters)
      .def("fail", &Session::fail, py::arg("why"), py::call_guard<py::gil_scoped_release>())
      .def_property_readonly("closed", &Session::closed);

  py::class_<ProcessGroupTopoopt, c10d::Backend, c10::intrusive_ptr<ProcessGroupTopoopt>>(
      module, "ProcessGroupTopoopt")
      .def(py::init(&topoopt::makeGroup), py::arg("session"), py::arg("name"), py::arg("channel"),
           py::arg("rank"), py::arg("ranks"), py::arg("rings"), py::arg("timeout"),
           py::call_guard<py::gil_scoped_release>())
      .def("shutdown", &ProcessGroupTopoopt::shutdown, py::call_guard<py::gil_scoped_release>())
      .def("perform_nocolor_split", [](ProcessGroupTopoopt&, const at::Device&) {});
}
