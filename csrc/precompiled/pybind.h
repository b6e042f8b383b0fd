// Common includes of _core's bindings; see standard.h.
#pragma once

#include <pybind11/functional.h>
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "precompiled/standard.h"
