// Graphs of device work (CUDA graphs), which operations cannot be part of.

#pragma once

#include <c10/core/Stream.h>

namespace topoopt {

// Whether what the stream is given goes to a graph that is launched later, again and again.
bool recordsGraph(const c10::Stream& stream);

}  // namespace topoopt
