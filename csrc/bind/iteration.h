// The common part of the bindings of the iteration and of the search: placements from Python.

#pragma once

#include <pybind11/pybind11.h>

#include <optional>
#include <tuple>
#include <vector>

#include "sim/flow/flow_simulator.h"
#include "sim/iteration/placements.h"

namespace topoopt {

// servers, kind of the parameter split (ParameterSplit as a number), its degree, attribute degree;
// the rest of the servers share the samples.
using PyPlacement = std::tuple<std::vector<int>, int, int, int>;

// Throws std::invalid_argument for a kind that is none, or degrees that the servers are no multiple
// of.
Placement toPlacement(const PyPlacement& placement);
std::vector<Placement> toStrategy(const std::vector<PyPlacement>& placements);
PyPlacement fromPlacement(const Placement& placement);

// None: fold where it pays.
Folding foldingOf(std::optional<bool> fold);

void bindIteration(pybind11::module_& module);

}  // namespace topoopt
