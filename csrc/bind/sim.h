// Shared by the bindings of both simulation levels.

#pragma once

#include <pybind11/pybind11.h>

#include <optional>

#include "sim/core/flow_program.h"
#include "sim/core/network.h"
#include "sim/core/task_runner.h"

namespace topoopt {

void bindSim(pybind11::module_& module);

// Runs `program` on `network` without the GIL. Returns a dictionary: completion_s, complete,
// events, packet_hops, cpu_seconds (of this thread for the run), and the arrays start_s, finish_s
// (per task, infinity if it did not happen) and link_bytes. `keep_going(now_s, finished)` is set in
// `options` unless None.
pybind11::dict runProgram(const FlowProgram& program, Network& network, RunOptions options,
                          const pybind11::object& keep_going);

// Reconfigurer for Python: `choose(now_s, BytesOfPairs)` returns a Move or None.
struct __attribute__((visibility("hidden"))) CircuitControl {
  double window_s, delay_s;
  pybind11::function choose;
};

// Sets `options.control` to a reconfigurer of `network`, or to nothing without `control`.
void addControl(RunOptions& options, const FlowProgram& program, ReconfigurableNetwork& network,
                const std::optional<CircuitControl>& control);

// Adds the packet level to the module (bind/packet.cc).
void bindPacket(pybind11::module_& module);

}  // namespace topoopt
