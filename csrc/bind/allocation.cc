// Bindings of board allocation, for torch_topoopt.shared_networks.allocation.

#include <pybind11/gil_safe_call_once.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "allocation/board_mesh.h"
#include "allocation/job_trace.h"
#include "bind/record.h"

namespace py = pybind11;

namespace topoopt {

template <>
struct Record<SubMesh> {
  static constexpr auto python =
      py::detail::const_name("torch_topoopt.shared_networks.allocation.boards.SubMesh");
  static constexpr auto fields =
      std::tuple(Field{"rows", &SubMesh::rows}, Field{"columns", &SubMesh::columns});
  static py::object make(const SubMesh& own);
};

namespace {

using Pairs = std::vector<std::pair<int, int>>;
using Places = std::vector<std::optional<SubMesh>>;  // by job

Fit fitOf(const std::string& name) {
  if (name == "first") return Fit::kFirst;
  if (name == "all-starts") return Fit::kAllStarts;
  if (name == "local") return Fit::kLocal;
  if (name == "tight") return Fit::kTight;
  throw std::invalid_argument("fit: '" + name + "' is not first, all-starts, local or tight");
}

JobKinds kindsOf(const std::vector<Pairs>& kinds, std::vector<int> jobs) {
  JobKinds made{{}, std::move(jobs)};
  for (const Pairs& shapes : kinds) {
    auto& own = made.shapes.emplace_back();
    for (const auto& [rows, columns] : shapes) own.push_back({rows, columns});
  }
  for (const int kind : made.kind_of) {
    if (kind < 0 || kind >= static_cast<int>(kinds.size())) {
      throw std::invalid_argument("jobs: " + std::to_string(kind) + " is not one of " +
                                  std::to_string(kinds.size()) + " kinds");
    }
  }
  return made;
}

// Checks for ascending, distinct places in range.
void checkPlaces(const char* field, const std::vector<int>& places, int count) {
  int least = 0;
  for (int place : places) {
    if (place < least || place >= count) {
      throw std::invalid_argument(std::string(field) + ": not ascending from 0 to before " +
                                  std::to_string(count));
    }
    least = place + 1;
  }
}

const SubMesh& checked(const BoardMesh& mesh, const SubMesh& given) {
  checkPlaces("rows", given.rows, mesh.rows());
  checkPlaces("columns", given.columns, mesh.columns());
  return given;
}

Places placesOf(std::vector<SubMesh> placed) {
  Places places(placed.size());
  for (size_t job = 0; job < placed.size(); ++job) {
    if (!placed[job].empty()) places[job] = std::move(placed[job]);
  }
  return places;
}

Places allocate(BoardMesh& mesh, const std::vector<Pairs>& kinds, std::vector<int> jobs,
                const std::vector<int>& order, const std::string& fit, int per_leaf) {
  const py::gil_scoped_release unlocked;
  return placesOf(
      allocateInOrder(mesh, kindsOf(kinds, std::move(jobs)), order, fitOf(fit), per_leaf));
}

Places improve(BoardMesh& mesh, const std::vector<Pairs>& kinds, std::vector<int> jobs,
               const Places& given, int rounds, uint64_t seed) {
  if (given.size() != jobs.size()) throw std::invalid_argument("placed: not one for each job");
  std::vector<SubMesh> placed;
  for (const auto& own : given) placed.push_back(own ? checked(mesh, *own) : SubMesh{});
  const py::gil_scoped_release unlocked;
  improveAllocation(mesh, kindsOf(kinds, std::move(jobs)), placed, rounds, seed);
  return placesOf(std::move(placed));
}

std::optional<SubMesh> find(const BoardMesh& mesh, int rows, int columns, const std::string& fit,
                            int per_leaf) {
  SubMesh found = mesh.find({rows, columns}, fitOf(fit), per_leaf);
  if (found.empty()) return std::nullopt;
  return found;
}

}  // namespace

// Skips __init__ and its checks: many results, which are sorted already.
py::object Record<SubMesh>::make(const SubMesh& own) {
  struct Names {
    py::object python_class;
    py::object nothing, rows, columns;
  };
  PYBIND11_CONSTINIT static py::gil_safe_call_once_and_store<Names> kept;
  const Names& names =
      kept.call_once_and_store_result([] {
            return Names{pythonClass<SubMesh>(), py::tuple(), py::str("rows"), py::str("columns")};
          })
          .get_stored();
  auto* type = reinterpret_cast<PyTypeObject*>(names.python_class.ptr());
  auto made = py::reinterpret_steal<py::object>(type->tp_new(type, names.nothing.ptr(), nullptr));
  if (!made) throw py::error_already_set();
  for (const auto& [name, places] :
       {std::pair(names.rows, &own.rows), std::pair(names.columns, &own.columns)}) {
    const py::object value = inRecord(*places);
    if (PyObject_GenericSetAttr(made.ptr(), name.ptr(), value.ptr()) != 0) {
      throw py::error_already_set();
    }
  }
  return made;
}

void bindAllocation(py::module_& module) {
  py::class_<BoardMesh>(module, "BoardMesh",
                        "The free boards of a HammingMesh; `failed` has [row, column].")
      .def(py::init<int, int, const Pairs&>(), py::arg("rows"), py::arg("columns"),
           py::arg("failed"))
      .def_property_readonly("free_boards", &BoardMesh::freeBoards)
      .def("find", &find, py::arg("rows"), py::arg("columns"), py::arg("fit"), py::arg("per_leaf"),
           "A free sub-mesh; None where none was found.")
      .def(
          "is_free",
          [](const BoardMesh& mesh, const SubMesh& wanted) {
            return mesh.isFree(checked(mesh, wanted));
          },
          py::arg("wanted"))
      .def(
          "take", [](BoardMesh& mesh, const SubMesh& found) { mesh.take(checked(mesh, found)); },
          py::arg("found"))
      .def(
          "release",
          [](BoardMesh& mesh, const SubMesh& found) { mesh.release(checked(mesh, found)); },
          py::arg("found"))
      .def("allocate", &allocate, py::arg("kinds"), py::arg("jobs"), py::arg("order"),
           py::arg("fit"), py::arg("per_leaf"),
           "Takes a sub-mesh for each job of `order` that gets one. A job is the number of its "
           "kind; a kind is the shapes that its jobs take, as (rows, columns), the one to try "
           "first at the front.")
      .def("improve", &improve, py::arg("kinds"), py::arg("jobs"), py::arg("placed"),
           py::arg("rounds"), py::arg("seed"),
           "Ruin and recreate; what it returns has no fewer boards.");
}

}  // namespace topoopt
