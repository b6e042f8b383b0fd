// Bindings of an iteration as tasks of a flow program, for torch_topoopt.sim.iteration_program.

#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <memory>
#include <tuple>
#include <vector>

#include "bind/architectures.h"
#include "bind/iteration.h"
#include "sim/iteration/iteration_program.h"

namespace py = pybind11;

namespace pybind11::detail {

template <>
struct type_caster<topoopt::CargoKind> {
  using Kind = topoopt::CargoKind;
  PYBIND11_TYPE_CASTER(Kind, const_name("typing.Literal['activations', 'gradients', 'AllReduce']"));

  static handle cast(Kind kind, return_value_policy, handle) {
    if (kind == Kind::kAllReduce) return str("AllReduce").release();
    return str(kind == Kind::kActivations ? "activations" : "gradients").release();
  }
};

}  // namespace pybind11::detail

namespace topoopt {

void bindIterationTasks(py::module_& module);

namespace {

py::array_t<int> column(const IterationTasks& tasks, int IterationTasks::TaskFlow::* field) {
  py::array_t<int> values(static_cast<py::ssize_t>(tasks.flows().size()));
  int* at = values.mutable_data();
  for (const IterationTasks::TaskFlow& flow : tasks.flows()) *at++ = flow.*field;
  return values;
}

RingSteps ringStepsOf(const std::string& name) {
  if (name == "together") return RingSteps::kTogether;
  if (name == "chained") return RingSteps::kChained;
  if (name == "barrier") return RingSteps::kBarrier;
  throw std::invalid_argument("ring_steps: '" + name + "' is not together, chained or barrier");
}

AddedIterations addTo(const IterationTasks& tasks, FlowProgram& program,
                      const std::vector<std::vector<WeightedPath>>& paths,
                      const Array<int>& path_of_flow, int iterations,
                      const std::vector<int>& hosts) {
  const std::span<const int> numbers(path_of_flow.data(), path_of_flow.size());
  return tasks.addTo(program, paths, numbers, iterations, hosts);
}

}  // namespace

void bindIterationTasks(py::module_& module) {
  py::class_<WeightedPath>(
      module, "WeightedPath",
      "Links (indices) from a source to a target, and the fraction of the bytes on them.")
      .def(py::init<std::vector<int>, double>(), py::arg("links"), py::arg("weight") = 1.0);
  py::class_<IterationTasks::RingCargo>(module, "Cargo",
                                        "What flows carry, of which operators (indices); of an "
                                        "AllReduce the order of its ring, or of "
                                        "its row or column, and how many steps of it.")
      .def_property_readonly(
          "kind", [](const IterationTasks::RingCargo& cargo) { return cargo.cargo.kind; })
      .def_property_readonly(
          "operators", [](const IterationTasks::RingCargo& cargo) { return cargo.cargo.operators; })
      .def_readonly("ring", &IterationTasks::RingCargo::ring)
      .def_readonly("is_line", &IterationTasks::RingCargo::is_line)
      .def_readonly("steps", &IterationTasks::RingCargo::steps);
  py::class_<AddedIterations>(
      module, "AddedIterations",
      "The tasks that end an iteration, and per task an index into the cargoes (-1: no flow).")
      .def_readonly("ends", &AddedIterations::ends)
      .def_readonly("cargo_of_task", &AddedIterations::cargo_of_task);
  py::class_<IterationTasks>(
      module, "IterationTasks",
      "The tasks of one iteration; its flows, from source[i] to target[i], have no paths yet. "
      "Those with is_direct[i] = 1 must use the links from one to the other.")
      .def(
          py::init([](std::shared_ptr<Job> job, RoutedNetwork& network,
                      const std::vector<plan::Placement>& strategy, const std::string& ring_steps) {
            return IterationTasks(std::move(job), network, strategy, ringStepsOf(ring_steps));
          }),
          py::arg("job").none(false), py::arg("network"), py::arg("strategy"),
          py::arg("ring_steps") = "together")
      .def_property_readonly("source",
                             [](const IterationTasks& tasks) {
                               return column(tasks, &IterationTasks::TaskFlow::source);
                             })
      .def_property_readonly("target",
                             [](const IterationTasks& tasks) {
                               return column(tasks, &IterationTasks::TaskFlow::target);
                             })
      .def_property_readonly("is_direct",
                             [](const IterationTasks& tasks) {
                               return column(tasks, &IterationTasks::TaskFlow::is_direct);
                             })
      .def_property_readonly("cargoes", &IterationTasks::cargoes)
      .def(
          "computed",
          [](const IterationTasks& tasks, int priority) {
            const Computed computed = tasks.computed(priority);
            return std::make_tuple(computed.op, computed.batch, computed.is_backward);
          },
          "(operator or -1, micro-batch, whether backward) of a compute task of that priority.",
          py::arg("priority"))
      .def("add_to", &addTo, py::arg("program"), py::arg("paths"), py::arg("path_of_flow"),
           py::arg("iterations"), py::arg("hosts") = std::vector<int>{});
}

}  // namespace topoopt
