"""What a user's own training script communicates, recorded without starting its other ranks."""

from torch_topoopt.script_trace.demand import RootedDemand, demand_of, on_servers, rooted_demands
from torch_topoopt.script_trace.document import CollectiveCall, CommunicationTrace
from torch_topoopt.script_trace.runner import ScriptError, TraceLimits, trace_script

__all__ = [
    "CollectiveCall",
    "CommunicationTrace",
    "RootedDemand",
    "ScriptError",
    "TraceLimits",
    "demand_of",
    "on_servers",
    "rooted_demands",
    "trace_script",
]
