// Bindings of flow programs and the flow level, for torch_topoopt.sim.flows.

#include "bind/sim.h"

#include <pybind11/functional.h>
#include <pybind11/numpy.h>
#include <pybind11/stl.h>
#include <time.h>

#include <chrono>
#include <map>
#include <optional>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "bind/architectures.h"
#include "bind/bytes_of_pairs.h"
#include "bind/iteration.h"
#include "sim/core/flow_program_reader.h"
#include "sim/core/reconfigurer.h"
#include "sim/core/task_runner.h"
#include "sim/flow/flow_network.h"
#include "sim/flow/flow_simulator.h"

namespace py = pybind11;

namespace topoopt {
namespace {

double threadCpuSeconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

template <typename T>
py::array_t<T> array(const std::vector<T>& values) {
  return py::array_t<T>(static_cast<py::ssize_t>(values.size()), values.data());
}

// Returns a tuple with an array per loop.
py::tuple roundEnds(const Outcome& outcome) {
  py::list ends;
  for (const std::vector<double>& of_loop : outcome.round_ends_s) ends.append(array(of_loop));
  return py::tuple(ends);
}

std::string item(const char* list, size_t index) {
  return std::string(list) + "[" + std::to_string(index) + "]";
}

// A flow of a program for display.
struct PlacedFlow {
  int64_t id;
  int source, target;
  double size_bytes;
  std::vector<int> links;
};

PlacedFlow flowOf(const FlowProgram& program, int task) {
  if (task < 0 || task >= program.graph().size() ||
      program.graph().tasks()[task].kind != TaskKind::kFlow) {
    throw std::invalid_argument("task: " + std::to_string(task) + " is not a flow");
  }
  const Task& flow = program.graph().tasks()[task];
  const auto links = program.route(flow.resource);
  return {program.taskId(task),
          program.links()[links.front()].source,
          program.links()[links.back()].target,
          flow.amount,
          {links.begin(), links.end()}};
}

int addLink(FlowProgram& program, int source, int target, double bits_per_s, double latency_ns) {
  const size_t number = program.links().size();
  program.addLink({static_cast<int64_t>(number), source, target, bits_per_s, latency_ns},
                  [number] { return item("links", number); });
  return static_cast<int>(number);
}

int addFlow(FlowProgram& program, int source, int target, double size_bytes,
            const std::vector<int>& links) {
  return program.addFlow({program.graph().size(), source, target, size_bytes}, links,
                         [&program] { return item("flows", program.flowCount()); });
}

int addCompute(FlowProgram& program, int host, double seconds, int priority) {
  return program.addCompute(host, seconds, priority,
                            [&program] { return item("tasks", program.graph().size()); });
}

int addDelay(FlowProgram& program, double seconds) {
  return program.addDelay(seconds, [&program] { return item("tasks", program.graph().size()); });
}

void addDependency(FlowProgram& program, int before, int after) {
  for (int task : {before, after}) {
    if (task >= 0 && task < program.graph().size()) continue;
    throw std::invalid_argument("after: task " + std::to_string(task) + " is not in 0.." +
                                std::to_string(program.graph().size() - 1));
  }
  program.addDependency(before, after);
}

void addChange(FlowProgram& program, double time_s, int link, double bits_per_s) {
  program.addChange({time_s, link, bits_per_s},
                    [&program] { return item("changes", program.changes().size()); });
}

void addLoop(FlowProgram& program, int first, int end, double start_s) {
  program.addLoop({first, end, start_s});
}

void failOnCycle(const FlowProgram& program) {
  const std::vector<int> cycle = findCycle(program.graph());
  if (cycle.empty()) return;
  throw std::invalid_argument("after: the dependencies form a cycle: " +
                              cycleText(cycle, [](int task) { return int64_t{task}; }));
}

Reconfigurer::CircuitMove toMove(const std::map<int, double>& rates, const Array<int64_t>& source,
                                 const Array<int64_t>& target, const Array<double>& latency_s,
                                 const Array<int64_t>& begin, const Array<int64_t>& link,
                                 const Array<double>& load) {
  return {{rates.begin(), rates.end()}, toPairPaths(source, target, latency_s, begin, link, load)};
}

py::dict runFlowLevel(const FlowProgram& program, double until_s, const py::object& keep_going,
                      const std::optional<CircuitControl>& control) {
  ProgramFlowNetwork level(program);
  RunOptions options{until_s, program.changes()};
  addControl(options, program, level.network, control);
  return runProgram(program, level.network, std::move(options), keep_going);
}

// Simulates symmetric parts once (fold.h). Returns the makespan, and finish times, busy seconds and
// bytes per task, host and link.
py::tuple runFolded(const FlowProgram& program, std::optional<bool> fold) {
  failOnCycle(program);
  const ProgramFlowNetwork level(program);
  FlowSimulator simulator(level.capacity, level.paths, program.hosts(), foldingOf(fold));
  const Outcome* outcome = nullptr;
  {
    py::gil_scoped_release release;
    outcome = &simulator.run(program.graph());
  }
  return py::make_tuple(outcome->makespan_s, outcome->finish_s, outcome->device_busy_s,
                        outcome->link_bytes);
}

std::vector<int> flowTasks(const FlowProgram& program) {
  std::vector<int> flows;
  for (int task = 0; task < program.graph().size(); ++task) {
    if (program.graph().tasks()[task].kind == TaskKind::kFlow) flows.push_back(task);
  }
  return flows;
}

struct Computation {
  int task;
  int host;
  int priority;
};

std::vector<Computation> computeTasks(const FlowProgram& program) {
  std::vector<Computation> found;
  for (int number = 0; number < program.graph().size(); ++number) {
    const Task& task = program.graph().tasks()[number];
    if (task.kind != TaskKind::kCompute) continue;
    found.push_back({number, task.resource, task.priority});
  }
  return found;
}

void bindFlowProgram(py::module_& module) {
  py::class_<Computation>(module, "Computation")
      .def_readonly("task", &Computation::task)
      .def_readonly("host", &Computation::host)
      .def_readonly("priority", &Computation::priority);
  py::class_<ProgramLink>(module, "ProgramLink")
      .def_readonly("id", &ProgramLink::id)
      .def_readonly("source", &ProgramLink::source)
      .def_readonly("target", &ProgramLink::target)
      .def_readonly("bits_per_s", &ProgramLink::bits_per_s)
      .def_readonly("latency_ns", &ProgramLink::latency_ns);
  py::class_<PlacedFlow>(module, "ProgramFlow")
      .def_readonly("id", &PlacedFlow::id)
      .def_readonly("source", &PlacedFlow::source)
      .def_readonly("target", &PlacedFlow::target)
      .def_readonly("size_bytes", &PlacedFlow::size_bytes)
      .def_readonly("links", &PlacedFlow::links);
  py::class_<FlowProgram>(
      module, "FlowProgram",
      "Links and tasks: flows with paths, computation, delays. What is added is checked, a fault "
      "is a "
      "ValueError. Tasks are numbered in the order of addition, and so are links; a task waits for "
      "those that `add_dependency` says.")
      .def(py::init<int64_t, int64_t>(), py::arg("nodes"), py::arg("hosts"))
      .def("add_link", &addLink, py::arg("source"), py::arg("target"), py::arg("bits_per_s"),
           py::arg("latency_ns"))
      .def("add_flow", &addFlow, py::arg("source"), py::arg("target"), py::arg("size_bytes"),
           py::arg("links"))
      .def("add_compute", &addCompute, py::arg("host"), py::arg("seconds"), py::arg("priority") = 0)
      .def("add_delay", &addDelay, py::arg("seconds"))
      .def("add_dependency", &addDependency, py::arg("before"), py::arg("after"))
      .def("add_change", &addChange, py::arg("time_s"), py::arg("link"), py::arg("bits_per_s"))
      .def("set_first_come", &FlowProgram::setFirstCome, py::arg("first_come"))
      .def("add_loop", &addLoop, py::arg("first"), py::arg("end"), py::arg("start_s") = 0.0,
           "Tasks first..end again and again; `end` waits for all others of them.")
      .def("set_rounds", &FlowProgram::setRounds, py::arg("rounds"),
           "How often every loop has to end before the run does.")
      .def("set_hosts_at_once", &FlowProgram::setHostsAtOnce, py::arg("count"))
      .def_static("read", &readFlowProgram, py::arg("path"),
                  py::call_guard<py::gil_scoped_release>())
      .def_static(
          "parse", [](const std::string& text) { return parseFlowProgram(text); }, py::arg("text"))
      .def_property_readonly("nodes", &FlowProgram::nodes)
      .def_property_readonly("hosts", &FlowProgram::hosts)
      .def_property_readonly("flow_count", &FlowProgram::flowCount)
      .def_property_readonly("task_count",
                             [](const FlowProgram& program) { return program.graph().size(); })
      .def_property_readonly("flow_tasks", &flowTasks)
      .def_property_readonly("compute_tasks", &computeTasks)
      .def_property_readonly("links", &FlowProgram::links)
      .def("flow", &flowOf, "The flow that is task `task`; its links are indices.",
           py::arg("task"));
}

// Calls `goes_on`, if given, and handles Python signals, so that Ctrl-C ends a long run.
class KeepGoing {
 public:
  explicit KeepGoing(const py::object& goes_on) : goes_on_(goes_on) {}

  bool operator()(double now_s, int finished) {
    if (goes_on_.is_none() && std::chrono::steady_clock::now() < due_) return true;
    const py::gil_scoped_acquire acquire;
    due_ = std::chrono::steady_clock::now() + kBetweenLooks;
    if (PyErr_CheckSignals() != 0) throw py::error_already_set();
    return goes_on_.is_none() || goes_on_(now_s, finished).cast<bool>();
  }

 private:
  static constexpr std::chrono::milliseconds kBetweenLooks{50};

  const py::object& goes_on_;  // requires the GIL
  std::chrono::steady_clock::time_point due_ = std::chrono::steady_clock::now() + kBetweenLooks;
};

}  // namespace

py::dict runProgram(const FlowProgram& program, Network& network, RunOptions options,
                    const py::object& keep_going) {
  failOnCycle(program);
  if (!(options.until_s >= 0)) {
    throw std::invalid_argument("until_s: " + std::to_string(options.until_s) +
                                " is not a time from 0 on");
  }
  TaskRunner runner(program.hosts());
  options.first_come = program.firstCome();
  options.rounds = program.rounds();
  options.keep_going = KeepGoing(keep_going);
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
  result["complete"] = outcome->complete;
  result["flows"] = program.flowCount();
  result["events"] = outcome->events;
  result["packet_hops"] = network.packetHops();
  result["cpu_seconds"] = cpu_seconds;
  result["start_s"] = array(outcome->start_s);
  result["finish_s"] = array(outcome->finish_s);
  result["link_bytes"] = array(outcome->link_bytes);
  result["device_busy_s"] = array(outcome->device_busy_s);
  result["round_ends_s"] = roundEnds(*outcome);
  return result;
}

void addControl(RunOptions& options, const FlowProgram& program, ReconfigurableNetwork& network,
                const std::optional<CircuitControl>& control) {
  if (!control) return;
  options.control_at_s = 0;
  options.control = Reconfigurer(
      network, program, control->window_s, control->delay_s,
      [choose = control->choose](double now_s, const Reconfigurer::Demand& demand) {
        const py::gil_scoped_acquire acquire;
        return choose(now_s, BytesOfPairs{demand}).cast<std::optional<Reconfigurer::CircuitMove>>();
      });
}

void bindSim(py::module_& module) {
  bindFlowProgram(module);
  py::class_<Reconfigurer::CircuitMove>(
      module, "CircuitMove",
      "Rates by link (0: no circuit any more), and the paths of pairs as in network_of_paths.")
      .def(py::init(&toMove), py::arg("rates"), py::arg("source"), py::arg("target"),
           py::arg("latency_s"), py::arg("begin"), py::arg("link"), py::arg("load"));
  py::class_<CircuitControl>(module, "CircuitControl",
                             "`choose(now_s, waiting)`, with BytesOfPairs, is called at 0 and "
                             "then every window; it returns a CircuitMove or None.")
      .def(py::init<double, double, py::function>(), py::arg("window_s"), py::arg("delay_s"),
           py::arg("choose"));
  module.def("run_flow_level", &runFlowLevel, py::arg("program"), py::arg("until_s"),
             py::arg("keep_going"), py::arg("control") = py::none());
  module.def("run_folded", &runFolded, py::arg("program"), py::arg("fold"),
             "At flow level, with what behaves alike simulated once (None: where that saves time): "
             "(makespan, finish per task, busy seconds per host, bytes per link).");
}

}  // namespace topoopt
