// Allocation of boards for Python. torch_topoopt.allocation is the front.

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstdint>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "allocation/board_mesh.h"
#include "allocation/job_trace.h"

namespace py = pybind11;

namespace topoopt {
namespace {

using Pairs = std::vector<std::pair<int, int>>;
using PySubMesh = std::pair<std::vector<int>, std::vector<int>>;  // rows, columns

Fit fitOf(const std::string& name) {
  if (name == "first") return Fit::kFirst;
  if (name == "all-starts") return Fit::kAllStarts;
  if (name == "local") return Fit::kLocal;
  if (name == "tight") return Fit::kTight;
  throw std::invalid_argument("fit: '" + name + "' is not first, all-starts, local or tight");
}

JobShapes shapesOf(const std::vector<Pairs>& jobs) {
  JobShapes shapes;
  for (const Pairs& job : jobs) {
    auto& own = shapes.emplace_back();
    for (const auto& [rows, columns] : job) own.push_back({rows, columns});
  }
  return shapes;
}

// Ascending, each once, and in range.
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

SubMesh checked(const BoardMesh& mesh, PySubMesh given) {
  checkPlaces("rows", given.first, mesh.rows());
  checkPlaces("columns", given.second, mesh.columns());
  return {std::move(given.first), std::move(given.second)};
}

std::vector<PySubMesh> pairsOf(std::vector<SubMesh> placed) {
  std::vector<PySubMesh> pairs;
  pairs.reserve(placed.size());
  for (SubMesh& own : placed) pairs.emplace_back(std::move(own.rows), std::move(own.columns));
  return pairs;
}

std::vector<PySubMesh> allocate(BoardMesh& mesh, const std::vector<Pairs>& jobs,
                                const std::vector<int>& order, const std::string& fit,
                                int per_leaf) {
  std::vector<SubMesh> placed;
  {
    py::gil_scoped_release unlocked;
    placed = allocateInOrder(mesh, shapesOf(jobs), order, fitOf(fit), per_leaf);
  }
  return pairsOf(std::move(placed));
}

std::vector<PySubMesh> improve(BoardMesh& mesh, const std::vector<Pairs>& jobs,
                               std::vector<PySubMesh> given, int rounds, uint64_t seed) {
  if (given.size() != jobs.size()) throw std::invalid_argument("placed: not one for each job");
  std::vector<SubMesh> placed;
  for (PySubMesh& own : given) placed.push_back(checked(mesh, std::move(own)));
  {
    py::gil_scoped_release unlocked;
    improveAllocation(mesh, shapesOf(jobs), placed, rounds, seed);
  }
  return pairsOf(std::move(placed));
}

}  // namespace

void bindAllocation(py::module_& module) {
  py::class_<BoardMesh>(module, "BoardMesh",
                        "The free boards of a HammingMesh; `failed` has [row, column].")
      .def(py::init<int, int, const Pairs&>(), py::arg("rows"), py::arg("columns"),
           py::arg("failed"))
      .def_property_readonly("free_boards", &BoardMesh::freeBoards)
      .def(
          "find",
          [](const BoardMesh& mesh, int rows, int columns, const std::string& fit, int per_leaf) {
            SubMesh found = mesh.find({rows, columns}, fitOf(fit), per_leaf);
            return PySubMesh(std::move(found.rows), std::move(found.columns));
          },
          py::arg("rows"), py::arg("columns"), py::arg("fit"), py::arg("per_leaf"),
          "Rows and columns of a free sub-mesh, both empty where none was found.")
      .def(
          "is_free",
          [](const BoardMesh& mesh, const PySubMesh& wanted) {
            return mesh.isFree(checked(mesh, wanted));
          },
          py::arg("wanted"))
      .def(
          "take", [](BoardMesh& mesh, const PySubMesh& found) { mesh.take(checked(mesh, found)); },
          py::arg("found"))
      .def(
          "release",
          [](BoardMesh& mesh, const PySubMesh& found) { mesh.release(checked(mesh, found)); },
          py::arg("found"))
      .def("allocate", &allocate, py::arg("jobs"), py::arg("order"), py::arg("fit"),
           py::arg("per_leaf"),
           "Takes a sub-mesh for each job of `order` that gets one. A job is its shapes, as (rows, "
           "columns), the one to try first at the front.")
      .def("improve", &improve, py::arg("jobs"), py::arg("placed"), py::arg("rounds"),
           py::arg("seed"), "Ruin and recreate; what it returns has no fewer boards.");
}

}  // namespace topoopt
