"""Python bindings of the C++ simulators.

- `predict` and `predict_ideal_switch` predict the time of one training iteration of an OpGraph.
- `run_flows` and `run_flow_file` run flows with explicit paths, sizes and dependencies.
- `run_program` runs any program of flows, computation and delays.

At flow level, flows share links max-min fairly, and a flow is delivered one path latency after its
last byte was sent. The packet level simulates every packet. A server computes one task at a time.
"""

from torch_topoopt.sim.flows import (
    LEVELS,
    Flow,
    FlowLink,
    FlowsResult,
    LinkChange,
    read_flows,
    run_flow_file,
    run_flows,
    run_program,
    write_flows,
)
from torch_topoopt.sim.iteration import (
    IterationEstimate,
    complete_groups,
    predict,
    predict_ideal_switch,
)
from torch_topoopt.sim.packet import Reroute, packet_options
from torch_topoopt.sim.plan_program import named_plan_program, plan_program

__all__ = [
    "LEVELS",
    "Flow",
    "FlowLink",
    "FlowsResult",
    "IterationEstimate",
    "LinkChange",
    "Reroute",
    "complete_groups",
    "named_plan_program",
    "packet_options",
    "plan_program",
    "predict",
    "predict_ideal_switch",
    "read_flows",
    "run_flow_file",
    "run_flows",
    "run_program",
    "write_flows",
]
