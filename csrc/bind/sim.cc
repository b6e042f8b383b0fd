// Bindings of flow programs and of the flow level: torch_topoopt.sim.flows is their front.

#include "bind/sim.h"

#include <pybind11/functional.h>
#include <pybind11/numpy.h>
#include <pybind11/stl.h>
#include <time.h>

#include <limits>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

#include "sim/core/flow_program_reader.h"
#include "sim/core/task_runner.h"
#include "sim/flow/flow_network.h"

namespace py = pybind11;

namespace topoopt {
namespace {

// source, target, bits_per_s, latency_ns
using PyLink = std::tuple<int, int, double, double>;
// source, target, size_bytes, links, after
using PyFlow = std::tuple<int, int, double, std::vector<int>, std::vector<int>>;
// "flow", source, target, size_bytes, 0, links, after | "compute", host, 0, seconds, priority, [],
// after | "delay", 0, 0, seconds, 0, [], after
using PyTask = std::tuple<std::string, int, int, double, int, std::vector<int>, std::vector<int>>;
using PyChange = std::tuple<double, int, double>;

double threadCpuSeconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

template <typename T>
py::array_t<T> array(const std::vector<T>& values) {
  return py::array_t<T>(static_cast<py::ssize_t>(values.size()), values.data());
}

std::string item(const char* list, size_t index) {
  return std::string(list) + "[" + std::to_string(index) + "]";
}

void checkIndices(const std::vector<int>& indices, size_t count, const char* what,
                  const std::string& where) {
  for (int index : indices) {
    if (index >= 0 && static_cast<size_t>(index) < count) continue;
    throw std::invalid_argument(where + what + " " + std::to_string(index) + " is not in 0.." +
                                std::to_string(static_cast<int64_t>(count) - 1));
  }
}

void addLinks(const std::vector<PyLink>& links, FlowProgram& program) {
  for (size_t i = 0; i < links.size(); ++i) {
    const auto& [source, target, bits_per_s, latency_ns] = links[i];
    program.addLink({static_cast<int64_t>(i), source, target, bits_per_s, latency_ns},
                    [i] { return item("links", i); });
  }
}

void finish(const std::vector<PyChange>& changes, const char* list, FlowProgram& program) {
  for (size_t i = 0; i < changes.size(); ++i) {
    const auto& [time_s, link, bits_per_s] = changes[i];
    program.addChange({time_s, link, bits_per_s}, [i] { return item("changes", i); });
  }
  const std::vector<int> cycle = findCycle(program.graph());
  if (cycle.empty()) return;
  throw std::invalid_argument(std::string(list) + ": the dependencies form a cycle: " +
                              cycleText(cycle, [](int task) { return int64_t{task}; }));
}

FlowProgram makeProgram(int64_t nodes, int64_t hosts, const std::vector<PyLink>& links,
                        const std::vector<PyFlow>& flows, const std::vector<PyChange>& changes) {
  FlowProgram program(nodes, hosts);
  addLinks(links, program);
  for (size_t i = 0; i < flows.size(); ++i) {
    const auto& [source, target, size_bytes, path, after] = flows[i];
    checkIndices(path, links.size(), ".path: link", item("flows", i));
    checkIndices(after, flows.size(), ".after: flow", item("flows", i));
    program.addFlow({static_cast<int64_t>(i), source, target, size_bytes}, path,
                    [i] { return item("flows", i); });
    for (int before : after) program.addDependency(before, static_cast<int>(i));
  }
  finish(changes, "flows", program);
  return program;
}

FlowProgram makeTaskProgram(int64_t nodes, int64_t hosts, const std::vector<PyLink>& links,
                            const std::vector<PyTask>& tasks, const std::vector<PyChange>& changes,
                            bool first_come, double hosts_at_once) {
  FlowProgram program(nodes, hosts);
  program.setFirstCome(first_come);
  program.setHostsAtOnce(hosts_at_once);
  addLinks(links, program);
  for (size_t i = 0; i < tasks.size(); ++i) {
    const auto& [kind, source, target, amount, priority, path, after] = tasks[i];
    const auto where = [i] { return item("tasks", i); };
    checkIndices(path, links.size(), ".path: link", item("tasks", i));
    checkIndices(after, tasks.size(), ".after: task", item("tasks", i));
    if (kind == "flow") {
      program.addFlow({static_cast<int64_t>(i), source, target, amount}, path, where);
    } else if (kind == "compute") {
      program.addCompute(source, amount, priority, where);
    } else if (kind == "delay") {
      program.addDelay(amount, where);
    } else {
      throw std::invalid_argument(where() + ".kind: '" + kind + "' is not flow, compute or delay");
    }
    for (int before : after) program.addDependency(before, static_cast<int>(i));
  }
  finish(changes, "tasks", program);
  return program;
}

py::dict runFlowLevel(const FlowProgram& program, double until_s, const py::object& keep_going) {
  ProgramFlowNetwork level(program);
  return runProgram(program, level.network, {until_s, program.changes()}, keep_going);
}

}  // namespace

py::dict runProgram(const FlowProgram& program, Network& network, RunOptions options,
                    const py::object& keep_going) {
  if (!(options.until_s >= 0)) {
    throw std::invalid_argument("until_s: " + std::to_string(options.until_s) +
                                " is not a time from 0 on");
  }
  TaskRunner runner(program.hosts());
  options.first_come = program.firstCome();
  if (!keep_going.is_none()) {
    options.keep_going = [&keep_going](double now_s, int finished) {
      py::gil_scoped_acquire acquire;
      return keep_going(now_s, finished).cast<bool>();
    };
  }
  const Outcome* outcome = nullptr;
  double cpu_seconds = 0;
  {
    py::gil_scoped_release release;
    const double begin = threadCpuSeconds();
    outcome = &runner.run(program.graph(), network, options);
    cpu_seconds = threadCpuSeconds() - begin;
  }
  py::dict result;
  result["completion_s"] = outcome->makespan_s;
  result["complete"] = outcome->finished == program.graph().size();
  result["flows"] = program.flowCount();
  result["events"] = outcome->events;
  result["packet_hops"] = network.packetHops();
  result["cpu_seconds"] = cpu_seconds;
  result["start_s"] = array(outcome->start_s);
  result["finish_s"] = array(outcome->finish_s);
  result["link_bytes"] = array(outcome->link_bytes);
  result["device_busy_s"] = array(outcome->device_busy_s);
  return result;
}

void bindSim(py::module_& module) {
  py::class_<FlowProgram>(module, "FlowProgram")
      .def(py::init(&makeProgram), py::arg("nodes"), py::arg("hosts"), py::arg("links"),
           py::arg("flows"), py::arg("changes"))
      .def_static("of_tasks", &makeTaskProgram, py::arg("nodes"), py::arg("hosts"),
                  py::arg("links"), py::arg("tasks"), py::arg("changes"),
                  py::arg("first_come") = false,
                  py::arg("hosts_at_once") = std::numeric_limits<double>::infinity())
      .def_static("read", &readFlowProgram, py::arg("path"),
                  py::call_guard<py::gil_scoped_release>())
      .def_static(
          "parse", [](const std::string& text) { return parseFlowProgram(text); }, py::arg("text"))
      .def_property_readonly("nodes", &FlowProgram::nodes)
      .def_property_readonly("hosts", &FlowProgram::hosts)
      .def_property_readonly("flow_count", &FlowProgram::flowCount)
      .def_property_readonly("task_count",
                             [](const FlowProgram& program) { return program.graph().size(); })
      .def_property_readonly("flow_tasks",
                             [](const FlowProgram& program) {
                               std::vector<int> flows;
                               for (int task = 0; task < program.graph().size(); ++task) {
                                 if (program.graph().tasks()[task].kind == TaskKind::kFlow) {
                                   flows.push_back(task);
                                 }
                               }
                               return flows;
                             })
      .def_property_readonly("links",
                             [](const FlowProgram& program) {
                               std::vector<std::tuple<int64_t, int, int, double, double>> links;
                               for (const ProgramLink& link : program.links()) {
                                 links.emplace_back(link.id, link.source, link.target,
                                                    link.bits_per_s, link.latency_ns);
                               }
                               return links;
                             })
      .def(
          "flow",
          [](const FlowProgram& program, int task) {
            const Task& flow = program.graph().tasks().at(task);
            if (flow.kind != TaskKind::kFlow) {
              throw std::invalid_argument("task " + std::to_string(task) + " is not a flow");
            }
            const auto links = program.route(flow.resource);
            return py::make_tuple(program.taskId(task), program.links()[links.front()].source,
                                  program.links()[links.back()].target, flow.amount,
                                  std::vector<int>(links.begin(), links.end()));
          },
          "ID, source, target, size_bytes and links (indices) of the flow that is task `task`.",
          py::arg("task"));
  module.def("run_flow_level", &runFlowLevel, py::arg("program"), py::arg("until_s"),
             py::arg("keep_going"));
}

}  // namespace topoopt
