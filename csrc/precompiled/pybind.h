// What the bindings of _core include, compiled once; see standard.h.
#pragma once

#include <pybind11/functional.h>
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "precompiled/standard.h"
