// Bindings of the packet level: torch_topoopt.sim.packet is their front.

#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "bind/sim.h"
#include "sim/core/flow_program.h"
#include "sim/packet/packet_network.h"
#include "sim/packet/transport.h"

namespace py = pybind11;

namespace topoopt {
namespace {

using packet::LinkCounts;
using packet::Options;
using packet::PacketNetwork;

using Path = std::vector<int>;
using Setter = std::function<void(Options&, const py::handle&)>;

// Any member of Options, however deep, by a function that refers to it.
template <typename Member>
Setter member(Member refer) {
  return [refer](Options& options, const py::handle& value) {
    auto& field = refer(options);
    field = value.cast<std::remove_reference_t<decltype(field)>>();
  };
}

template <typename Choice>
Setter choice(Choice Options::* field, std::map<std::string, Choice> choices) {
  return [field, choices = std::move(choices)](Options& options, const py::handle& value) {
    const auto found = choices.find(py::str(value).cast<std::string>());
    if (found == choices.end()) {
      std::string names;
      for (const auto& [name, unused] : choices) names += (names.empty() ? "" : ", ") + name;
      throw std::invalid_argument(py::repr(value).cast<std::string>() + " is not one of " + names);
    }
    options.*field = found->second;
  };
}

#define TOPOOPT_FIELD(path) member([](Options& o) -> auto& { return o.path; })

const std::map<std::string, Setter>& setters() {
  using packet::ReturnPath, packet::Spread;
  static const std::map<std::string, Setter> all = {
      {"transport", TOPOOPT_FIELD(transport)},
      {"acks", choice(&Options::acks, {{"links", ReturnPath::kLinks},
                                       {"latency", ReturnPath::kLatency},
                                       {"instant", ReturnPath::kInstant}})},
      {"spread", choice(&Options::spread, {{"ecmp", Spread::kEcmp}, {"spray", Spread::kSpray}})},
      {"start_order", choice(&Options::start_order, {{"drawn", packet::StartOrder::kDrawn},
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

Options makeOptions(const py::dict& given) {
  Options options;
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

// `paths`: (flow, its paths) per set of paths; `reroutes`: (time_s, flow, path). Both concern all
// flows that have the path of the flow that is named.
py::dict runPacketLevel(const FlowProgram& program, double until_s, const py::object& keep_going,
                        const py::dict& options,
                        const std::vector<std::pair<int, std::vector<Path>>>& paths,
                        const std::vector<std::tuple<double, int, Path>>& reroutes,
                        const std::optional<CircuitControl>& control) {
  PacketNetwork network(program, makeOptions(options));
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

}  // namespace

void bindPacket(py::module_& module) {
  module.def("run_packet_level", &runPacketLevel, py::arg("program"), py::arg("until_s"),
             py::arg("keep_going"), py::arg("options"), py::arg("paths"), py::arg("reroutes"),
             py::arg("control") = py::none());
  module.def("packet_transports", &packet::transports);
  module.def("packet_options", [] {
    std::vector<std::string> names;
    for (const auto& [name, unused] : setters()) names.push_back(name);
    return names;
  });
}

}  // namespace topoopt
