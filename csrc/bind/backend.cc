// The extension module torch_topoopt._backend: the process group "topoopt".
//
// Python reads the Plan, opens the sockets of this server's links and hands both over as plain
// numbers; from then on everything happens in C++.

#include <pybind11/chrono.h>
#include <pybind11/functional.h>
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>
#include <torch/version.h>

#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

#include "backend/process_group.h"
#include "backend/session.h"
#include "collectives/measuring.h"
#include "collectives/team_segment.h"

namespace py = pybind11;

namespace topoopt {
namespace {

// kind ("socket" or "shm"), rank at the other end, source, source port, target, target port,
// descriptor, whether this rank sends on it
using LinkTuple = std::tuple<std::string, int, int, int, int, int, int, bool>;
using RouteTuple = std::tuple<std::vector<int>, double>;
using RingTuple = std::tuple<std::vector<int>, double>;
using CostTuple = std::tuple<double, double, double, double>;  // as CostModel

std::shared_ptr<Session> makeSession(int rank, int size, const std::vector<LinkTuple>& links,
                                     const std::vector<RouteTuple>& routes, size_t window_bytes,
                                     std::function<void(const std::string&)> closed) {
  EndpointConfig config;
  config.rank = rank;
  config.size = size;
  config.window_bytes = window_bytes;
  for (const auto& [kind, peer, source, source_port, target, target_port, fd, sends] : links) {
    config.links.push_back(
        {{source, source_port, target, target_port}, fd, sends, kindNamed(kind), peer});
  }
  for (const auto& [ranks, weight] : routes) config.routes.push_back({ranks, weight});
  return std::make_shared<Session>(std::move(config), std::move(closed));
}

CostModel costModel(const CostTuple& cost) {
  const auto& [message_s, hop_s, seconds_per_byte, reduce_s_per_byte] = cost;
  return {message_s, hop_s, seconds_per_byte, reduce_s_per_byte};
}

// A group, without its use.
GroupConfig groupConfig(int rank, std::vector<int> ranks, std::vector<int> servers,
                        const std::vector<RingTuple>& rings, std::vector<int> hops) {
  GroupConfig config;
  config.rank = rank;
  config.ranks = std::move(ranks);
  config.servers = std::move(servers);
  for (const auto& [order, share] : rings) config.rings.push_back({order, share});
  config.hops = std::move(hops);
  return config;
}

CostTuple measuredCost(Session& session, int rank, std::vector<int> ranks, std::vector<int> servers,
                       const std::vector<RingTuple>& rings, std::vector<int> hops,
                       double seconds_per_byte, std::chrono::milliseconds timeout) {
  GroupConfig config =
      groupConfig(rank, std::move(ranks), std::move(servers), rings, std::move(hops));
  config.cost.seconds_per_byte = seconds_per_byte;
  const CostModel model = measureCost(session.endpoint(), std::move(config), timeout);
  return {model.message_s, model.hop_s, model.seconds_per_byte, model.reduce_s_per_byte};
}

c10::intrusive_ptr<ProcessGroupTopoopt> makeGroup(
    std::shared_ptr<Session> session, const std::string& name, uint32_t channel, int rank,
    std::vector<int> ranks, std::vector<int> servers, const std::vector<RingTuple>& rings,
    std::vector<int> hops, const CostTuple& cost, int segment_fd, const std::string& algorithm,
    c10::intrusive_ptr<ProcessGroupTopoopt::Options> options, c10::intrusive_ptr<c10d::Store> store,
    ProcessGroupTopoopt::Splitter splitter) {
  GroupConfig config =
      groupConfig(rank, std::move(ranks), std::move(servers), rings, std::move(hops));
  config.name = name;
  config.channel = channel;
  config.cost = costModel(cost);
  config.segment_fd = segment_fd;
  config.algorithm = algorithm;
  return c10::make_intrusive<ProcessGroupTopoopt>(std::move(session), std::move(config),
                                                  std::move(options), std::move(store),
                                                  std::move(splitter));
}

void bindOptions(py::object scope) {
  using Options = ProcessGroupTopoopt::Options;
  const auto copy = [](const Options& options) { return c10::make_intrusive<Options>(options); };
  py::class_<Options, c10d::Backend::Options, c10::intrusive_ptr<Options>>(
      scope, "Options", "What a process group is made with: ProcessGroupTopoopt.Options(timeout).")
      .def(py::init<std::chrono::milliseconds>(),
           py::arg("timeout") = std::chrono::milliseconds(::kBackendDefaultTimeout))
      .def_readwrite("group_desc", &Options::group_desc)
      .def("__copy__", copy)
      .def("__deepcopy__",
           [copy](const Options& options, const py::dict&) { return copy(options); })
      .def(py::pickle(
          [](const Options& options) {
            return py::make_tuple(options.timeout, options.group_name, options.group_desc,
                                  options.global_ranks_in_group);
          },
          [](const py::tuple& state) {
            auto options = c10::make_intrusive<Options>(state[0].cast<std::chrono::milliseconds>());
            options->group_name = state[1].cast<std::string>();
            options->group_desc = state[2].cast<std::string>();
            options->global_ranks_in_group = state[3].cast<std::vector<uint64_t>>();
            return options;
          }));
}

py::list ringCounters(ProcessGroupTopoopt& group) {
  std::vector<RingCounters> counters;
  {
    py::gil_scoped_release no_gil;
    counters = group.ringCounters();
  }
  py::list list;
  for (const RingCounters& counter : counters) {
    py::dict entry;
    entry["kind"] = counter.kind;
    entry["index"] = counter.index;
    entry["ranks"] = counter.ranks;
    entry["sent_bytes"] = counter.counters.sent_bytes;
    entry["seconds"] = counter.counters.busy_s;
    list.append(entry);
  }
  return list;
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
    entry["kind"] = kindName(spec.kind);
    entry["sent_bytes"] = counter.sent_bytes;
    entry["relayed_bytes"] = counter.relayed_bytes;
    entry["received_bytes"] = counter.received_bytes;
    entry["overhead_bytes"] = counter.overhead_bytes;
    entry["seconds"] = counter.busy_s;
    list.append(entry);
  }
  return list;
}

constexpr size_t kMostIterations = 1 << 24;  // asked about at once; far more than are remembered

// Of this rank's own messages, and by link, in the order of linkCounters.
py::tuple iterationBytes(Session& session, uint64_t first, size_t count) {
  if (count > kMostIterations) {
    throw std::invalid_argument("count: " + std::to_string(count) + " is more than " +
                                std::to_string(kMostIterations));
  }
  std::vector<std::pair<LinkSpec, LinkCounters>> links;
  std::vector<std::vector<uint64_t>> sent;
  std::vector<uint64_t> own;
  {
    py::gil_scoped_release no_gil;
    links = session.endpoint()->counters();
    sent = session.endpoint()->iterationBytes(first, count);
    own = session.endpoint()->ownIterationBytes(first, count);
  }
  py::list list;
  for (size_t i = 0; i < links.size(); ++i) {
    if (links[i].first.sends) list.append(py::cast(sent[i]));
  }
  return py::make_tuple(own, list);
}

}  // namespace
}  // namespace topoopt

PYBIND11_MODULE(_backend, module) {
  using topoopt::ProcessGroupTopoopt;
  using topoopt::Session;
  module.doc() = "The process group \"topoopt\".";
  module.attr("torch_version") = TORCH_VERSION;
  py::module_::import("torch._C._distributed_c10d");

  module.attr("MAX_TEAM_MEMBERS") = topoopt::TeamSegment::kMaxMembers;
  module.def("team_segment_bytes", &topoopt::TeamSegment::bytesFor, py::arg("size"),
             "Bytes that a group of `size` ranks on one server shares.");

  py::class_<Session, std::shared_ptr<Session>>(
      module, "Session", "The links of this process, shared by all its process groups.")
      .def(py::init(&topoopt::makeSession), py::arg("rank"), py::arg("size"), py::arg("links"),
           py::arg("routes"), py::arg("window_bytes"), py::arg("closed").none(false))
      .def("link_counters", &topoopt::linkCounters)
      .def(
          "begin_iteration", [](Session& session) { return session.endpoint()->beginIteration(); },
          "What is sent from now on belongs to the next iteration; returns its number.")
      .def("iteration_bytes", &topoopt::iterationBytes, py::arg("first"), py::arg("count"),
           "Bytes of the messages of each iteration from `first` on: those of this rank, and what "
           "each link has sent of all that pass it.")
      .def("measure_cost", &topoopt::measuredCost, py::arg("rank"), py::arg("ranks"),
           py::arg("servers"), py::arg("rings"), py::arg("hops"), py::arg("seconds_per_byte"),
           py::arg("timeout"), py::call_guard<py::gil_scoped_release>(),
           "What messages cost, measured by all `ranks` together: message_s, hop_s, "
           "seconds_per_byte, reduce_s_per_byte.")
      .def("hold", &Session::hold)
      .def("release", &Session::release, py::arg("limit"), py::call_guard<py::gil_scoped_release>())
      .def("release_aborted", &Session::groupAborted, py::arg("why"),
           py::call_guard<py::gil_scoped_release>())
      .def("fail", &Session::fail, py::arg("why"), py::call_guard<py::gil_scoped_release>())
      .def_property_readonly("closed", &Session::closed)
      .def_property_readonly("inherited", &Session::inherited);

  py::class_<ProcessGroupTopoopt, c10d::Backend, c10::intrusive_ptr<ProcessGroupTopoopt>> group(
      module, "ProcessGroupTopoopt");
  topoopt::bindOptions(group);
  group.def_property_readonly("group_name", &ProcessGroupTopoopt::groupName)
      .def("ring_counters", &topoopt::ringCounters)
      .def_property_readonly("is_shut_down", &ProcessGroupTopoopt::isShutDown)
      .def_property_readonly("options", &ProcessGroupTopoopt::getBackendOptions)
      .def("shutdown", &ProcessGroupTopoopt::shutdown, py::call_guard<py::gil_scoped_release>())
      .def("end_with", &ProcessGroupTopoopt::endWith, py::arg("companion"))
      .def("perform_nocolor_split", [](ProcessGroupTopoopt&, const at::Device&) {})
      .def(py::init(&topoopt::makeGroup), py::arg("session").none(false), py::arg("name"),
           py::arg("channel"), py::arg("rank"), py::arg("ranks"), py::arg("servers"),
           py::arg("rings"), py::arg("hops"), py::arg("cost"), py::arg("segment_fd"),
           py::arg("algorithm"), py::arg("options").none(false), py::arg("store"),
           py::arg("splitter"), py::call_guard<py::gil_scoped_release>());
}
