// The extension module torch_topoopt._backend: the process group "topoopt".
//
// Python reads the Plan and opens the sockets of this server's links; C++ does the rest.

#include <c10/util/Logging.h>
#include <pybind11/functional.h>
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>
#include <torch/version.h>

#include <algorithm>
#include <map>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "backend/process_group.h"
#include "backend/session.h"
#include "bind/session_types.h"
#include "collectives/measuring.h"
#include "collectives/memory/team_segment.h"
#include "transport/libfabric/port.h"

namespace py = pybind11;

namespace topoopt {
namespace {

std::shared_ptr<Session> makeSession(int rank, int size, std::vector<LinkSpec> links,
                                     std::vector<plan::Route> routes, size_t window_bytes,
                                     std::function<void(const std::string&)> closed,
                                     std::optional<std::shared_ptr<FlightRecorder>> recorder,
                                     std::optional<SupervisorConfig> supervision,
                                     std::vector<CableEnds> cables, std::vector<int> servers,
                                     std::chrono::milliseconds silence_limit, size_t workers) {
  return std::make_shared<Session>(EndpointConfig{.rank = rank,
                                                  .size = size,
                                                  .links = std::move(links),
                                                  .routes = std::move(routes),
                                                  .window_bytes = window_bytes,
                                                  .cables = std::move(cables),
                                                  .servers = std::move(servers),
                                                  .silence_limit = silence_limit,
                                                  .workers = workers},
                                   std::move(closed), recorder.value_or(nullptr),
                                   std::move(supervision));
}

c10::intrusive_ptr<ProcessGroupTopoopt> makeGroup(
    std::shared_ptr<Session> session, GroupConfig config,
    c10::intrusive_ptr<ProcessGroupTopoopt::Options> options, c10::intrusive_ptr<c10d::Store> store,
    ProcessGroupTopoopt::Splitter splitter, bool in_place) {
  return c10::make_intrusive<ProcessGroupTopoopt>(std::move(session), std::move(config),
                                                  std::move(options), std::move(store),
                                                  std::move(splitter), in_place);
}

// Its destructor waits for the reactor thread, which must not wait for the GIL.
std::shared_ptr<CircuitClient> makeCircuitClient(Session& session, int fd, bool exchanges,
                                                 double least_s, std::vector<int> numbers) {
  const py::gil_scoped_release released;
  return {new CircuitClient(session.endpoint(), fd, {exchanges, least_s}, std::move(numbers)),
          [](CircuitClient* control) {
            if (PyGILState_Check() == 0) return delete control;
            const py::gil_scoped_release released;
            delete control;
          }};
}

void bindLibfabric(py::module_& module) {
  module.def("fabric_missing", &fabricMissing,
             "Why libfabric cannot be used, and what to install; \"\" if it can.");
  module.def("fabric_addresses", &fabricAddresses, py::arg("provider"),
             "The IP addresses of the interfaces that `provider` of libfabric can use. Raises "
             "RuntimeError without libfabric.");
}

void bindGroupParts(py::module_& module) {
  py::class_<HopTable, std::shared_ptr<HopTable>>(
      module, "HopTable",
      "Links on the shortest route between each two servers. The rules are those of "
      "torch_topoopt.plan.RouteTable; a pair that none of them serves has its link, or 0.")
      .def(py::init(&HopTable::ofRoutes), py::arg("servers"), py::arg("links"),
           py::arg("by_offset"), py::arg("next_hops"), py::arg("listed"));
  py::class_<CircuitClient, std::shared_ptr<CircuitClient>>(
      module, "CircuitClient", "This rank's connection to what moves the circuits of its job.");
}

std::shared_ptr<FlightRecorder> makeRecorder(size_t capacity) {
  return std::make_shared<FlightRecorder>(capacity);
}

void bindRecorder(py::module_& module) {
  py::class_<FlightRecorder, std::shared_ptr<FlightRecorder>>(
      module, "FlightRecorder", "The last `capacity` operations of this process.")
      .def(py::init(&makeRecorder), py::arg("capacity"));
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

std::vector<py::dict> ringCounters(const ProcessGroupTopoopt& group) {
  std::vector<RingCounters> counters;
  {
    const py::gil_scoped_release released;
    counters = group.ringCounters();
  }
  std::vector<py::dict> listed;
  for (const RingCounters& part : counters) {
    listed.emplace_back(py::arg("kind") = part.kind, py::arg("index") = part.index,
                        py::arg("ranks") = part.ranks, py::arg("sent_bytes") = part.sent_bytes,
                        py::arg("seconds") = part.seconds);
  }
  return listed;
}

std::vector<py::dict> deviceMemory(const ProcessGroupTopoopt& group) {
  std::map<std::string, InPlace::Use> uses;
  {
    const py::gil_scoped_release released;
    uses = group.deviceMemory();
  }
  std::vector<py::dict> listed;
  for (const auto& [kind, use] : uses) {
    listed.emplace_back(py::arg("memory") = kind, py::arg("in_place") = use.in_place,
                        py::arg("bytes") = use.bytes);
  }
  return listed;
}

// Traffic of the links on which this rank sends.
std::vector<LinkTraffic> linkTraffic(Session& session) {
  std::vector<LinkTraffic> links = session.endpoint()->traffic();
  std::erase_if(links, [](const LinkTraffic& link) { return !link.sends; });
  return links;
}

std::map<std::string, std::pair<uint64_t, uint64_t>> heldMemory(Session& session) {
  const HeldMemory memory = session.endpoint()->heldMemory();
  const auto pair = [](const HeldBytes& held) { return std::pair(held.now, held.peak); };
  return {{"relay", pair(memory.relayed)},
          {"early", pair(memory.early)},
          {"buffer", pair(memory.buffers)}};
}

constexpr size_t kMostIterations = 1 << 24;  // limit per call, far above the kept number

// Bytes of this rank's own messages, and by link in the order of linkTraffic.
std::pair<std::vector<uint64_t>, std::vector<std::vector<uint64_t>>> iterationBytes(
    Session& session, uint64_t first, size_t count) {
  if (count > kMostIterations) {
    throw std::invalid_argument("count: " + std::to_string(count) + " is more than " +
                                std::to_string(kMostIterations));
  }
  const std::vector<LinkTraffic> links = session.endpoint()->traffic();
  const std::vector<std::vector<uint64_t>> sent = session.endpoint()->iterationBytes(first, count);
  std::vector<std::vector<uint64_t>> of_senders;
  for (size_t i = 0; i < links.size(); ++i) {
    if (links[i].sends) of_senders.push_back(sent[i]);
  }
  return {session.endpoint()->ownIterationBytes(first, count), std::move(of_senders)};
}

using SessionClass = py::class_<Session, std::shared_ptr<Session>>;

void bindCables(SessionClass& session) {
  const py::call_guard<py::gil_scoped_release> no_gil;
  session
      .def_property_readonly(
          "cables_event", [](Session& session) { return session.endpoint()->cablesEvent(); },
          "An eventfd: lost_cables() or slow_cables() may have changed. -1 without cables.")
      .def(
          "lost_cables", [](Session& session) { return session.endpoint()->lostCables(); }, no_gil,
          "Cables of this rank that need a new connection, as indices.")
      .def(
          "replace_cable",
          [](Session& session, int cable, int fd, const py::bytes& tls_key) {
            const std::string key = tls_key;
            const py::gil_scoped_release released;
            session.endpoint()->replaceCable(cable, fd, key);
          },
          py::arg("cable"), py::arg("fd"), py::arg("tls_key") = py::bytes(),
          "Goes on with a cable over a verified connection, which the session takes over; with a "
          "`tls_key`, if the cable had one.")
      .def(
          "begin_move",
          [](Session& session, int cable) { return session.endpoint()->beginMove(cable); },
          py::arg("cable"), no_gil,
          "Before a cable that is in use is dialled anew, to be replaced; False if it is not.")
      .def(
          "end_move", [](Session& session, int cable) { session.endpoint()->endMove(cable); },
          py::arg("cable"), no_gil, "What was dialled has failed.")
      .def(
          "slow_cables", [](Session& session) { return session.endpoint()->slowCables(); }, no_gil,
          "Cables over which this rank sends less than they should carry, as indices.")
      .def(
          "limit_cable",
          [](Session& session, int cable, std::optional<uint64_t> bytes_per_s) {
            session.endpoint()->limitCable(cable, bytes_per_s);
          },
          py::arg("cable"), py::arg("bytes_per_s").none(true), no_gil,
          "What the connection of a cable may send, until it has another one; None: no limit.");
}

void bindSession(py::module_& module) {
  const py::call_guard<py::gil_scoped_release> no_gil;
  SessionClass session(module, "Session",
                       "The links of this process, shared by all its process groups.");
  session
      .def(py::init(&makeSession), py::arg("rank"), py::arg("size"), py::arg("links"),
           py::arg("routes"), py::arg("window_bytes"), py::arg("closed").none(false),
           py::arg("recorder") = std::nullopt, py::arg("supervision") = std::nullopt,
           py::arg("cables") = std::vector<CableEnds>{}, py::arg("servers") = std::vector<int>{},
           py::arg("silence_limit") = EndpointConfig{}.silence_limit, py::arg("workers") = 0,
           "`cables` are those of all ranks, in the same order on all, or none; `servers`: the "
           "server of each rank. A rank that says nothing for `silence_limit` fails the session. "
           "So many `workers`, threads, add up long chunks of collectives.")
      .def("link_traffic", &linkTraffic, no_gil)
      .def("held_memory", &heldMemory, no_gil,
           "Bytes that this rank holds for others, now and at most: relay, early, buffer.")
      .def(
          "remembered_entries",
          [](Session& session) { return session.endpoint()->rememberedEntries(); }, no_gil,
          "Flows and channels of which something is remembered.")
      .def(
          "begin_iteration", [](Session& session) { return session.endpoint()->beginIteration(); },
          "What is sent from now on belongs to the next iteration; returns its number.")
      .def("iteration_bytes", &iterationBytes, py::arg("first"), py::arg("count"), no_gil,
           "Bytes of the messages of each iteration from `first` on: those of this rank, and what "
           "each link has sent of all that pass it.")
      .def(
          "recorded_operations",
          [](Session& session) {
            const auto& supervisor = session.supervisor();
            return py::bytes(supervisor ? supervisor->recorded() : "");
          },
          "The flight recorder as a dump has it (supervision/dumps.py), without links; empty where "
          "nothing is recorded.")
      .def(
          "measure_cost",
          [](Session& session, GroupConfig group, std::chrono::milliseconds timeout) {
            return measureCost(session.endpoint(), std::move(group), timeout);
          },
          py::arg("group"), py::arg("timeout"), no_gil,
          "What messages cost, measured by all ranks of `group` together; the seconds per byte are "
          "those of `group.cost`.");
  bindCables(session);
  session
      .def("circuit_client", &makeCircuitClient, py::arg("fd"), py::arg("exchanges"),
           py::arg("least_s"), py::arg("numbers"),
           "To request moves of circuits over a connected stream socket, which it takes over: for "
           "all-to-alls if `exchanges`, and for other collectives that are predicted to take "
           "`least_s` or more. Whatever moves them knows the session's ranks by `numbers`.")
      .def("hold", &Session::hold)
      .def("release", &Session::release, py::arg("limit"), no_gil)
      .def("release_aborted", &Session::groupAborted, py::arg("why"), no_gil)
      .def("fail", &Session::fail, py::arg("why"), no_gil)
      .def_property_readonly("closed", &Session::closed)
      .def_property_readonly("inherited", &Session::inherited);
}

void bindProcessGroup(py::module_& module) {
  const py::call_guard<py::gil_scoped_release> no_gil;
  py::class_<ProcessGroupTopoopt, c10d::Backend, c10::intrusive_ptr<ProcessGroupTopoopt>> group(
      module, "ProcessGroupTopoopt");
  bindOptions(group);
  group.def_property_readonly("group_name", &ProcessGroupTopoopt::groupName)
      .def("ring_counters", &ringCounters,
           "Bytes and seconds of each ring, tree and kind of direct message, as stats() has them.")
      .def("device_memory", &deviceMemory,
           "Memory of tensors on devices by its kind, as stats() has it.")
      .def_property_readonly("is_shut_down", &ProcessGroupTopoopt::isShutDown)
      .def_property_readonly("options", &ProcessGroupTopoopt::getBackendOptions)
      .def("shutdown", &ProcessGroupTopoopt::shutdown, no_gil)
      .def("check_with", &ProcessGroupTopoopt::checkWith, py::arg("companion").none(false),
           py::arg("place_of_caller").none(true),
           "`companion`: a group of the same ranks, which ends with this one. `place_of_caller`: "
           "where the calling thread is in the script, which ranks compare, or None.")
      .def("perform_nocolor_split", [](ProcessGroupTopoopt&, const at::Device&) {})
      .def(py::init(&makeGroup), py::arg("session").none(false), py::arg("config"),
           py::arg("options").none(false), py::arg("store"), py::arg("splitter"),
           py::arg("in_place"), no_gil,
           "`in_place`: device tensors whose memory the host reaches are not copied.");
}

}  // namespace
}  // namespace topoopt

PYBIND11_MODULE(_backend, module) {
  module.doc() = "The process group \"topoopt\".";
  module.attr("torch_version") = TORCH_VERSION;
  py::module_::import("torch._C._distributed_c10d");

  module.attr("MAX_TEAM_MEMBERS") = topoopt::TeamSegment::kMaxMembers;
  module.def("team_segment_bytes", &topoopt::TeamSegment::bytesFor, py::arg("size"),
             "Bytes that a group of `size` ranks on one server shares.");

  module.def(
      "quiet_torch_log",
      [] { FLAGS_caffe2_log_level = std::max<int>(FLAGS_caffe2_log_level, c10::GLOG_ERROR); },
      "Leaves torch's C++ warnings out of this process's stderr. A TCPStore writes some, without a "
      "limit, for every client that does not speak as it does; where nobody reads stderr, it "
      "stops.");

  topoopt::bindLibfabric(module);
  topoopt::bindGroupParts(module);
  topoopt::bindRecorder(module);
  topoopt::bindSession(module);
  topoopt::bindProcessGroup(module);
}
