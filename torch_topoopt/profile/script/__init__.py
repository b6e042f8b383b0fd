"""The communication of a user's training script, recorded without starting its other ranks."""

from torch_topoopt.profile.script.demand import RootedDemand, demand_of, on_servers, rooted_demands
from torch_topoopt.profile.script.document import CollectiveCall, CommunicationTrace
from torch_topoopt.profile.script.runner import (
    LEAST_ITERATIONS,
    ScriptError,
    TraceLimits,
    TrainingScript,
    World,
    trace_script,
)

__all__ = [
    "LEAST_ITERATIONS",
    "CollectiveCall",
    "CommunicationTrace",
    "RootedDemand",
    "ScriptError",
    "TraceLimits",
    "TrainingScript",
    "World",
    "demand_of",
    "on_servers",
    "rooted_demands",
    "trace_script",
]
