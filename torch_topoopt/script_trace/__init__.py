"""What a user's own training script communicates, recorded without starting its other ranks."""

from torch_topoopt.script_trace.demand import demand_of, on_servers
from torch_topoopt.script_trace.document import CollectiveCall, CommunicationTrace
from torch_topoopt.script_trace.runner import ScriptError, TraceLimits, trace_script

__all__ = [
    "CollectiveCall",
    "CommunicationTrace",
    "ScriptError",
    "TraceLimits",
    "demand_of",
    "on_servers",
    "trace_script",
]
