// Detects graphs of device work (CUDA graphs), which cannot contain operations.

#pragma once

#include <c10/core/Stream.h>

namespace topoopt {

// Returns whether the stream is recording a graph for later launches.
bool recordsGraph(const c10::Stream& stream);

}  // namespace topoopt
