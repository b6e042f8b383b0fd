// Bindings of the packet level, for torch_topoopt.sim.packet.

#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "bind/sim.h"
#include "sim/core/flow_program.h"
#include "sim/packet/adaptive_routing.h"
#include "sim/packet/packet_network.h"
#include "sim/packet/transport.h"

namespace py = pybind11;

namespace topoopt {
namespace {

using packet::AdaptiveRouting;
using packet::LinkCounts;
using packet::PacketNetwork;
using packet::PacketOptions;

using Path = std::vector<int>;
using Setter = std::function<void(PacketOptions&, const py::handle&)>;

// Binds a possibly nested member of Options through an accessor.
template <typename Member>
Setter member(Member refer) {
  return [refer](PacketOptions& options, const py::handle& value) {
    auto& field = refer(options);
    field = value.cast<std::remove_reference_t<decltype(field)>>();
  };
}

template <typename Choice>
Setter choice(Choice PacketOptions::* field, std::map<std::string, Choice> choices) {
  return [field, choices = std::move(choices)](PacketOptions& options, const py::handle& value) {
    const auto found = choices.find(py::str(value).cast<std::string>());
    if (found == choices.end()) {
      std::string names;
      for (const auto& [name, unused] : choices) names += (names.empty() ? "" : ", ") + name;
      throw std::invalid_argument(py::repr(value).cast<std::string>() + " is not one of " + names);
    }
    options.*field = found->second;
  };
}

#define TOPOOPT_FIELD(path) member([](PacketOptions& o) -> auto& { return o.path; })

const std::map<std::string, Setter>& setters() {
  using packet::ReturnPath, packet::Spread;
  static const std::map<std::string, Setter> all = {
      {"transport", TOPOOPT_FIELD(transport)},
      {"acks", choice(&PacketOptions::acks, {{"links", ReturnPath::kLinks},
                                             {"latency", ReturnPath::kLatency},
                                             {"instant", ReturnPath::kInstant}})},
      {"spread",
       choice(&PacketOptions::spread, {{"ecmp", Spread::kEcmp}, {"spray", Spread::kSpray}})},
      {"path_choice",
       choice(&PacketOptions::path_choice, {{"planned", packet::PathChoice::kPlanned},
                                            {"adaptive", packet::PathChoice::kAdaptive}})},
      {"sends_at_once", TOPOOPT_FIELD(sends_at_once)},
      {"start_order",
       choice(&PacketOptions::start_order, {{"drawn", packet::StartOrder::kDrawn},
                                            {"given", packet::StartOrder::kGiven},
                                            {"numbered", packet::StartOrder::kNumbered}})},
      {"control_first", TOPOOPT_FIELD(control_first)},
      {"mtu_bytes", TOPOOPT_FIELD(payload_bytes)},
      {"header_bytes", TOPOOPT_FIELD(header_bytes)},
      {"full_last_packet", TOPOOPT_FIELD(full_last_packet)},
      {"seed", TOPOOPT_FIELD(seed)},
      {"switch_queue_bytes", TOPOOPT_FIELD(switch_queue_bytes)},
      {"relay_queue_bytes", TOPOOPT_FIELD(relay_queue_bytes)},
      {"lossless", TOPOOPT_FIELD(lossless)},
      {"pause_above_bytes", TOPOOPT_FIELD(pause_above_bytes)},
      {"resume_below_bytes", TOPOOPT_FIELD(resume_below_bytes)},
      {"retransmission_timeout_s", TOPOOPT_FIELD(retransmission_timeout_s)},
      {"dctcp_handshake", TOPOOPT_FIELD(dctcp.handshake)},
      {"dctcp_initial_window_packets", TOPOOPT_FIELD(dctcp.initial_window_packets)},
      {"dctcp_gain", TOPOOPT_FIELD(dctcp.gain)},
      {"dctcp_mark_above_packets", TOPOOPT_FIELD(dctcp.mark_above_packets)},
      {"dctcp_queue_at_sender", TOPOOPT_FIELD(dctcp.queue_at_sender)},
      {"dctcp_mark_in_hosts", TOPOOPT_FIELD(dctcp.mark_in_hosts)},
      {"dctcp_mark_on_departure", TOPOOPT_FIELD(dctcp.mark_on_departure)},
      {"dctcp_cut_every_window", TOPOOPT_FIELD(dctcp.cut_every_window)},
      {"roce_packets_per_ack", TOPOOPT_FIELD(roce.packets_per_ack)},
      {"dcqcn_mark_from_bytes", TOPOOPT_FIELD(dcqcn.mark_from_bytes)},
      {"dcqcn_mark_all_from_bytes", TOPOOPT_FIELD(dcqcn.mark_all_from_bytes)},
      {"dcqcn_mark_probability", TOPOOPT_FIELD(dcqcn.mark_probability)},
      {"dcqcn_congestion_interval_s", TOPOOPT_FIELD(dcqcn.congestion_interval_s)},
      {"dcqcn_alpha_interval_s", TOPOOPT_FIELD(dcqcn.alpha_interval_s)},
      {"dcqcn_increase_interval_s", TOPOOPT_FIELD(dcqcn.increase_interval_s)},
      {"dcqcn_increase_bytes", TOPOOPT_FIELD(dcqcn.increase_bytes)},
      {"dcqcn_gain", TOPOOPT_FIELD(dcqcn.gain)},
      {"dcqcn_recovery_steps", TOPOOPT_FIELD(dcqcn.recovery_steps)},
      {"dcqcn_additive_part", TOPOOPT_FIELD(dcqcn.additive_part)},
      {"dcqcn_hyper_part", TOPOOPT_FIELD(dcqcn.hyper_part)},
      {"dcqcn_least_part", TOPOOPT_FIELD(dcqcn.least_part)},
      {"ndp_initial_window_packets", TOPOOPT_FIELD(ndp.initial_window_packets)},
      {"ndp_queue_packets", TOPOOPT_FIELD(ndp.queue_packets)},
      {"ndp_headers_per_packet", TOPOOPT_FIELD(ndp.headers_per_packet)},
  };
  return all;
}

#undef TOPOOPT_FIELD

PacketOptions makeOptions(const py::dict& given) {
  PacketOptions options;
  for (const auto& [key, value] : given) {
    const std::string name = py::str(key).cast<std::string>();
    const auto setter = setters().find(name);
    if (setter == setters().end()) {
      throw std::invalid_argument(name + ": is no option of the packet level");
    }
    try {
      setter->second(options, value);
    } catch (const py::cast_error&) {
      throw std::invalid_argument(name + ": " + py::repr(value).cast<std::string>() +
                                  " is not a value of its type");
    } catch (const std::invalid_argument& error) {
      throw std::invalid_argument(name + ": " + error.what());
    }
  }
  options.validate();
  return options;
}

int routeOf(const FlowProgram& program, int flow, const char* field) {
  if (flow < 0 || flow >= program.graph().size() ||
      program.graph().tasks()[flow].kind != TaskKind::kFlow) {
    throw std::invalid_argument(std::string(field) + ": " + std::to_string(flow) +
                                " is not a flow");
  }
  return program.graph().tasks()[flow].resource;
}

py::dict countsOf(const PacketNetwork& network, size_t links) {
  const std::pair<const char*, int64_t LinkCounts::*> columns[] = {
      {"packets", &LinkCounts::packets},
      {"wire_bytes", &LinkCounts::wire_bytes},
      {"dropped", &LinkCounts::dropped},
      {"trimmed", &LinkCounts::trimmed},
      {"marked", &LinkCounts::marked},
      {"pauses", &LinkCounts::pauses},
      {"most_queued_bytes", &LinkCounts::most_queued_bytes},
  };
  py::dict counts;
  for (const auto& [name, column] : columns) {
    py::array_t<int64_t> values(static_cast<py::ssize_t>(links));
    for (size_t i = 0; i < links; ++i) values.mutable_at(i) = network.counts(i).*column;
    counts[name] = values;
  }
  return counts;
}

// `paths`: (flow, its paths); `reroutes`: (time_s, flow, path). Both apply to all flows with the
// named flow's path.
py::dict runPacketLevel(const FlowProgram& program, double until_s, const py::object& keep_going,
                        const py::dict& options,
                        const std::vector<std::pair<int, std::vector<Path>>>& paths,
                        const std::vector<std::tuple<double, int, Path>>& reroutes,
                        const std::optional<CircuitControl>& control,
                        const std::optional<std::shared_ptr<AdaptiveRouting>>& routing) {
  PacketNetwork network(program, makeOptions(options), routing.value_or(nullptr));
  for (const auto& [flow, alternatives] : paths) {
    network.spread(routeOf(program, flow, "paths"), alternatives);
  }
  for (const auto& [time_s, flow, path] : reroutes) {
    network.planReroute(time_s, routeOf(program, flow, "reroutes"), path);
  }
  RunOptions run{until_s, program.changes()};
  addControl(run, program, network, control);
  py::dict result = runProgram(program, network, std::move(run), keep_going);
  result["packet_counts"] = countsOf(network, program.links().size());
  return result;
}

std::shared_ptr<AdaptiveRouting> makeRouting(int nodes,
                                             const std::vector<std::pair<int, int>>& links,
                                             int channels, std::vector<int> raises,
                                             std::vector<int> last, std::vector<int> lifts,
                                             std::vector<std::vector<int>> detours) {
  std::vector<packet::LinkEnds> ends;
  for (const auto& [source, target] : links) ends.push_back({source, target});
  return std::make_shared<AdaptiveRouting>(
      nodes, std::move(ends),
      packet::ChannelRule{channels, std::move(raises), std::move(last), std::move(lifts),
                          std::move(detours)});
}

void checkNode(const AdaptiveRouting& routing, const char* field, int node) {
  if (node >= 0 && node < routing.nodes()) return;
  throw std::invalid_argument(std::string(field) + ": node " + std::to_string(node) +
                              " is not in 0.." + std::to_string(routing.nodes() - 1));
}

// The links available to a packet at `source`; `over`: its last link, if any.
std::vector<uint32_t> candidatesOf(AdaptiveRouting& routing, int source, int target,
                                   std::optional<int> over) {
  checkNode(routing, "source", source);
  checkNode(routing, "target", target);
  routing.prepare(target, {});
  auto state = static_cast<uint32_t>(source);
  if (over) {
    if (*over < 0 || *over >= static_cast<int>(routing.links().size()) ||
        routing.links()[*over].target != source) {
      throw std::invalid_argument("over: " + std::to_string(*over) + " is no link to node " +
                                  std::to_string(source));
    }
    state = routing.stateAfter(static_cast<uint32_t>(*over));
  }
  const auto links = routing.candidates(state, static_cast<uint32_t>(target));
  return {links.begin(), links.end()};
}

std::vector<int> pathOf(AdaptiveRouting& routing, int source, int target) {
  checkNode(routing, "source", source);
  checkNode(routing, "target", target);
  return routing.path(source, target);
}

// Flow i from source[i] to target[i], over the first path of `routing`; returns the first flow's
// id.
int addRoutedFlows(AdaptiveRouting& routing, FlowProgram& program, const py::array_t<int>& source,
                   const py::array_t<int>& target, const py::array_t<double>& size_bytes) {
  const int first = program.graph().size();
  if (target.size() != source.size() || size_bytes.size() != source.size()) {
    throw std::invalid_argument("flows: source, target and size_bytes are of different lengths");
  }
  std::map<std::pair<int, int>, std::vector<int>> paths;
  for (py::ssize_t i = 0; i < source.size(); ++i) {
    checkNode(routing, "source", source.at(i));
    checkNode(routing, "target", target.at(i));
    std::vector<int>& path = paths[{source.at(i), target.at(i)}];
    if (path.empty()) path = routing.path(source.at(i), target.at(i));
    program.addFlow({program.graph().size(), source.at(i), target.at(i), size_bytes.at(i)}, path,
                    [i] { return "flows[" + std::to_string(i) + "]"; });
  }
  return first;
}

// Task after[i] waits for before[i].
void addDependencies(FlowProgram& program, const py::array_t<int>& before,
                     const py::array_t<int>& after) {
  if (before.size() != after.size()) {
    throw std::invalid_argument("after: not as many as before");
  }
  for (py::ssize_t i = 0; i < before.size(); ++i) {
    for (int task : {before.at(i), after.at(i)}) {
      if (task >= 0 && task < program.graph().size()) continue;
      throw std::invalid_argument("after: task " + std::to_string(task) + " is not in 0.." +
                                  std::to_string(program.graph().size() - 1));
    }
    program.addDependency(before.at(i), after.at(i));
  }
}

std::vector<int> hopsTo(AdaptiveRouting& routing, int target) {
  checkNode(routing, "target", target);
  routing.prepare(target, {});
  return routing.hops(target);
}

py::array_t<uint32_t> dependenciesOf(AdaptiveRouting& routing, const std::vector<int>& hosts) {
  for (int host : hosts) checkNode(routing, "hosts", host);
  std::vector<std::pair<uint32_t, uint32_t>> edges;
  {
    py::gil_scoped_release release;
    edges = routing.dependencies(hosts);
  }
  py::array_t<uint32_t> array({static_cast<py::ssize_t>(edges.size()), py::ssize_t{2}});
  for (size_t i = 0; i < edges.size(); ++i) {
    array.mutable_at(i, 0) = edges[i].first;
    array.mutable_at(i, 1) = edges[i].second;
  }
  return array;
}

void bindAdaptiveRouting(py::module_& module) {
  py::class_<AdaptiveRouting, std::shared_ptr<AdaptiveRouting>>(
      module, "AdaptiveRouting",
      "Which links a packet may take next, on which virtual channel. One object must not be used "
      "from two threads.")
      .def(py::init(&makeRouting), py::arg("nodes"), py::arg("links"), py::arg("channels") = 1,
           py::arg("raises") = py::tuple(), py::arg("last") = py::tuple(),
           py::arg("lifts") = py::tuple(), py::arg("detours") = py::tuple(),
           "`raises`: links that a packet takes on the next channel; `last`: behind one of these "
           "only such links, or those of `lifts`, may follow; `detours`: groups of nodes, over one "
           "of which a packet may be sent first.")
      .def_property_readonly("channels", &AdaptiveRouting::channels)
      .def("candidates", &candidatesOf, py::arg("source"), py::arg("target"),
           py::arg("over") = py::none(),
           "Links from `source` that a packet for `target` may take, made there or come `over` a "
           "link.")
      .def("path", &pathOf, py::arg("source"), py::arg("target"),
           "The first of the paths. Raises ValueError where there is none.")
      .def("add_flows", &addRoutedFlows, py::arg("program"), py::arg("source"), py::arg("target"),
           py::arg("size_bytes"),
           "Adds flow i from source[i] to target[i] over the first path; the number of the first.")
      .def("hops", &hopsTo, py::arg("target"),
           "The fewest links from every node to `target`; -1 where there is no path.")
      .def("dependencies", &dependenciesOf, py::arg("hosts"),
           "The channel dependency graph of packets between `hosts`: rows (a, b) where a packet "
           "that holds channel a may wait for channel b. A channel is link * channels + number.");
}

}  // namespace

void bindPacket(py::module_& module) {
  bindAdaptiveRouting(module);
  module.def("add_dependencies", &addDependencies, py::arg("program"), py::arg("before"),
             py::arg("after"), "Task after[i] of the program waits for before[i].");
  module.def("run_packet_level", &runPacketLevel, py::arg("program"), py::arg("until_s"),
             py::arg("keep_going"), py::arg("options"), py::arg("paths"), py::arg("reroutes"),
             py::arg("control") = py::none(), py::arg("routing") = py::none());
  module.def("packet_transports", &packet::transports);
  module.def("packet_options", [] {
    std::vector<std::string> names;
    for (const auto& [name, unused] : setters()) names.push_back(name);
    return names;
  });
}

}  // namespace topoopt
