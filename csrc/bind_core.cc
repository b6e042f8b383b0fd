// The extension module torch_topoopt._core: planner and simulators. Needs no torch at run time.

#include <pybind11/pybind11.h>

PYBIND11_MODULE(_core, module) { module.doc() = "Flow-level cost and strategy search."; }
