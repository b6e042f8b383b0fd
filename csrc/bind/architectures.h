// General networks, and the paths of their pairs in Python.

#pragma once

#include <pybind11/numpy.h>

#include <cstdint>
#include <vector>

#include "sim/core/path_table.h"

namespace topoopt {

template <typename T>
using Array = pybind11::array_t<T, pybind11::array::c_style | pybind11::array::forcecast>;

// Pair i goes from source[i] to target[i] over link[begin[i]..begin[i + 1]). Throws
// std::invalid_argument for arrays of inconsistent sizes.
std::vector<PairPath> toPairPaths(const Array<int64_t>& source, const Array<int64_t>& target,
                                  const Array<double>& latency_s, const Array<int64_t>& begin,
                                  const Array<int64_t>& link, const Array<double>& load);

void bindArchitectures(pybind11::module_& module);

}  // namespace topoopt
