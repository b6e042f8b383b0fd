// What bind/core.cc adds to its module from bind/architectures.cc.

#pragma once

#include <pybind11/pybind11.h>

namespace topoopt {

void bindArchitectures(pybind11::module_& module);

}  // namespace topoopt
