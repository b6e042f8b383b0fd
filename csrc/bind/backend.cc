// The extension module torch_topoopt._backend: the process group "topoopt".
//
// Python reads the Plan and opens the sockets of this server's links; C++ does the rest.

#include <c10/util/Logging.h>
#include <pybind11/chrono.h>
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
#include "bind/plan_types.h"
#include "collectives/measuring.h"
#include "collectives/memory/team_segment.h"
#include "transport/libfabric/port.h"

namespace py = pybind11;

namespace topoopt {

// As torch_topoopt.plan.LinkTraffic.
template <>
struct Record<LinkTraffic> {
  static constexpr auto python = py::detail::const_name("torch_topoopt.plan.LinkTraffic");
  static constexpr auto fields = std::tuple(
      Field{"source", &LinkTraffic::source}, Field{"source_port", &LinkTraffic::source_port},
      Field{"target", &LinkTraffic::target}, Field{"target_port", &LinkTraffic::target_port},
      Field{"kind", &LinkTraffic::kind}, Field{"sent_bytes", &LinkTraffic::sent_bytes},
      Field{"relayed_bytes", &LinkTraffic::relayed_bytes},
      Field{"received_bytes", &LinkTraffic::received_bytes},
      Field{"overhead_bytes", &LinkTraffic::overhead_bytes},
      Field{"seconds", &LinkTraffic::seconds},
      Field{"zero_copy_bytes", &LinkTraffic::zero_copy_bytes},
      Field{"copied_bytes", &LinkTraffic::copied_bytes});
};

}  // namespace topoopt

namespace pybind11::detail {

template <>
struct type_caster<topoopt::LinkKind> {
  PYBIND11_TYPE_CASTER(topoopt::LinkKind, const_name("typing.Literal['socket', 'shm', 'fabric']"));

  static handle cast(topoopt::LinkKind kind, return_value_policy, handle) {
    return str(topoopt::kindName(kind)).release();
  }
  bool load(handle source, bool) {
    if (!isinstance<str>(source)) return false;
    value = topoopt::kindNamed(source.cast<std::string>());
    return true;
  }
};

template <>
struct type_caster<topoopt::ZeroCopy> {
  PYBIND11_TYPE_CASTER(topoopt::ZeroCopy, const_name("typing.Literal['off', 'on', 'always']"));

  static handle cast(topoopt::ZeroCopy mode, return_value_policy, handle) {
    return str(topoopt::zeroCopyName(mode)).release();
  }
  bool load(handle source, bool) {
    if (!isinstance<str>(source)) return false;
    value = topoopt::zeroCopyNamed(source.cast<std::string>());
    return true;
  }
};

}  // namespace pybind11::detail

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
std::shared_ptr<CircuitClient> makeCircuitClient(Session& session, int fd, int members) {
  const py::gil_scoped_release released;
  return {new CircuitClient(session.endpoint(), fd, members), [](CircuitClient* control) {
            if (PyGILState_Check() == 0) return delete control;
            const py::gil_scoped_release released;
            delete control;
          }};
}

void bindLinks(py::module_& module) {
  py::class_<LinkSpec>(
      module, "LinkSpec",
      "A connected link, whose descriptor a Session takes over. `kind`: \"socket\", \"shm\" or "
      "\"fabric\", over libfabric's `provider`; `peer`: the rank at the other end; `cable`: its "
      "index among the session's cables, -1 for ranks of one server; `tls_key`: 32 bytes that "
      "both ends share, with which the link is encrypted, or none; `threads`: the long batches of "
      "a fast socket that is not encrypted are moved by threads of its own; `zero_copy`: its long "
      "payloads are sent from where they lie, \"off\", \"on\" until the kernel copies all the "
      "same, or \"always\".")
      .def(py::init([](const plan::LinkPorts& link, int fd, bool sends, LinkKind kind, int peer,
                       int cable, const py::bytes& tls_key, const std::string& provider,
                       bool threads, ZeroCopy zero_copy) {
             return LinkSpec{link,  fd,      sends,    kind,    peer,
                             cable, tls_key, provider, threads, zero_copy};
           }),
           py::arg("link"), py::arg("fd"), py::arg("sends"), py::arg("kind"), py::arg("peer"),
           py::arg("cable") = kNoCable, py::arg("tls_key") = py::bytes(), py::arg("provider") = "",
           py::arg("threads") = false, py::arg("zero_copy") = ZeroCopy::kOff);
  py::class_<CableEnds>(module, "CableEnds",
                        "A connection between ranks `a` and `b` of different servers: `link` is "
                        "its name as seen from `a`, which alone sends unless it is `duplex`. "
                        "`rate` is that of each direction in Gb/s; 1 for all if none is known.")
      .def(py::init([](const plan::LinkPorts& link, int a, int b, bool duplex, double rate) {
             return CableEnds{link, a, b, duplex, rate};
           }),
           py::arg("link"), py::arg("a"), py::arg("b"), py::arg("duplex"), py::arg("rate") = 1.0);
}

void bindLibfabric(py::module_& module) {
  module.def("fabric_version", &fabricVersion,
             "The release of libfabric that is installed; \"\": none that this build can use.");
  module.def("fabric_missing", &fabricMissing,
             "Why libfabric cannot be used, and what to install; \"\" if it can.");
  py::class_<FabricOffer>(module, "FabricOffer")
      .def_readonly("provider", &FabricOffer::provider)
      .def_readonly("domain", &FabricOffer::domain, "An interface or an RDMA device.")
      .def_readonly("address", &FabricOffer::address, "An IP address, or \"\".");
  module.def("fabric_offers", &fabricOffers, py::arg("provider"),
             "Interfaces of `provider` of libfabric. Raises RuntimeError without libfabric.");
}

void bindGroupConfig(py::module_& module) {
  py::class_<HopTable, std::shared_ptr<HopTable>>(
      module, "HopTable",
      "Links on the shortest route between each two servers. The rules are those of "
      "torch_topoopt.plan.RouteTable; a pair that none of them serves has its link, or 0.")
      .def(py::init(&HopTable::ofRoutes), py::arg("servers"), py::arg("links"),
           py::arg("by_offset"), py::arg("next_hops"), py::arg("listed"))
      .def("at", &HopTable::checkedAt, py::arg("source"), py::arg("target"));
  py::class_<CircuitClient, std::shared_ptr<CircuitClient>>(
      module, "CircuitClient", "This rank's connection to what moves the circuits of its job.");
  py::class_<GroupConfig>(module, "GroupConfig",
                          "A group of ranks of a session: `ranks[rank]` is this one. `rings` visit "
                          "the first member of every server, as indices into `ranks`.")
      .def(py::init([](int rank, std::vector<int> ranks, std::vector<int> servers,
                       std::vector<plan::Ring> rings, std::shared_ptr<HopTable> hops) {
             GroupConfig config;
             config.rank = rank;
             config.ranks = std::move(ranks);
             config.rings = std::move(rings);
             config.servers = std::move(servers);
             config.hops = std::move(hops);
             return config;
           }),
           py::arg("rank"), py::arg("ranks"), py::arg("servers"), py::arg("rings"),
           py::arg("hops").none(false))
      .def_readonly("rank", &GroupConfig::rank)
      .def_readonly("ranks", &GroupConfig::ranks)
      .def_readonly("servers", &GroupConfig::servers)
      .def_readonly("rings", &GroupConfig::rings)
      .def_readwrite("grid", &GroupConfig::grid,
                     "Rows of the same members, where their servers form a torus; empty: none.")
      .def_readwrite("routes", &GroupConfig::routes,
                     "Between members' servers over others, as their frames take them.")
      .def_readwrite("name", &GroupConfig::name)
      .def_readwrite("channel", &GroupConfig::channel)
      .def_readwrite("cost", &GroupConfig::cost)
      .def_readwrite("segment_fd", &GroupConfig::segment_fd,
                     "Of memory that all members share; -1: none.")
      .def_readwrite("circuits", &GroupConfig::circuits,
                     "Of a group with one rank on each server, member i on server i; or None.")
      .def_readwrite("algorithm", &GroupConfig::algorithm)
      .def_readwrite("planned_routes_only", &GroupConfig::planned_routes_only,
                     "All-to-alls take the plan's routes, whatever their sizes.");
}

std::shared_ptr<FlightRecorder> makeRecorder(size_t capacity) {
  return std::make_shared<FlightRecorder>(capacity);
}

void bindSupervision(py::module_& module) {
  py::class_<FlightRecorder, std::shared_ptr<FlightRecorder>>(
      module, "FlightRecorder", "The last `capacity` operations of this process.")
      .def(py::init(&makeRecorder), py::arg("capacity"))
      .def_property_readonly("recorded", &FlightRecorder::recorded);
  using Milliseconds = std::chrono::milliseconds;
  py::class_<SupervisorConfig>(
      module, "Supervision",
      "What a Session writes for others to see, of which rank. Paths may be empty: then nothing is "
      "written there. `request_path`: when this file appears or changes, the flight recorder is "
      "dumped; `stacks_fd`: an eventfd that is raised before every dump, or -1; "
      "`stacks_done_fd`: another one, without waiting, raised when the stacks are written.")
      .def(py::init([](int rank, int world_size, int server, int attempt) {
             SupervisorConfig config;
             config.of = {
                 .rank = rank, .world_size = world_size, .server = server, .attempt = attempt};
             return config;
           }),
           py::arg("rank"), py::arg("world_size"), py::arg("server"), py::arg("attempt"))
      .def(
          "name_operations",
          [](SupervisorConfig& config, std::string library, std::string any_sender) {
            config.of.library = std::move(library);
            config.of.any_sender = std::move(any_sender);
          },
          py::arg("library"), py::arg("any_sender"),
          "In dumps: the first part of an operation's name, and a sender that is not known.")
      .def_readwrite("dump_path", &SupervisorConfig::dump_path)
      .def_readwrite("dumps_failures", &SupervisorConfig::dumps_failures)
      .def_readwrite("status_path", &SupervisorConfig::status_path)
      .def_readwrite("warns_of_status", &SupervisorConfig::warns_of_status)
      .def_readwrite("request_path", &SupervisorConfig::request_path)
      .def_readwrite("stacks_fd", &SupervisorConfig::stacks_fd)
      .def_readwrite("stacks_done_fd", &SupervisorConfig::stacks_done_fd)
      .def_property(
          "dump_limit", [](const SupervisorConfig& config) { return config.dump_limit; },
          [](SupervisorConfig& config, Milliseconds limit) { config.dump_limit = limit; });
}

void bindCounters(py::module_& module) {
  py::class_<RingCounters>(
      module, "RingCounters",
      "What a ring, a tree or a kind of direct message of a group has carried.")
      .def_readonly("kind", &RingCounters::kind)
      .def_readonly("index", &RingCounters::index)
      .def_readonly("ranks", &RingCounters::ranks)
      .def_readonly("sent_bytes", &RingCounters::sent_bytes)
      .def_readonly("seconds", &RingCounters::seconds);
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

struct DeviceMemoryUse {
  std::string kind;
  bool in_place;
  uint64_t bytes;
};

std::vector<DeviceMemoryUse> deviceMemory(const ProcessGroupTopoopt& group) {
  std::vector<DeviceMemoryUse> memory;
  for (const auto& [kind, use] : group.deviceMemory()) {
    memory.push_back({kind, use.in_place, use.bytes});
  }
  return memory;
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
      .def("circuit_client", &makeCircuitClient, py::arg("fd"), py::arg("members"),
           "To ask over a connected stream socket, which it takes over, what moves the circuits of "
           "the session's `members` servers.")
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
  py::class_<DeviceMemoryUse>(module, "DeviceMemoryUse")
      .def_readonly("kind", &DeviceMemoryUse::kind, "The kind of memory, or why it was copied.")
      .def_readonly("in_place", &DeviceMemoryUse::in_place)
      .def_readonly("bytes", &DeviceMemoryUse::bytes);
  group.def_property_readonly("group_name", &ProcessGroupTopoopt::groupName)
      .def("ring_counters", &ProcessGroupTopoopt::ringCounters, no_gil)
      .def("device_memory", &deviceMemory, no_gil, "Memory of tensors on devices, by its kind.")
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

  topoopt::bindLinks(module);
  topoopt::bindLibfabric(module);
  topoopt::bindGroupConfig(module);
  topoopt::bindCounters(module);
  topoopt::bindSupervision(module);
  topoopt::bindSession(module);
  topoopt::bindProcessGroup(module);
}
