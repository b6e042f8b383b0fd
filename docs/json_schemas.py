"""JSON Schema (draft 2020-12) of what each verb prints with --json, from the types of its result.

The site shows them (site/pages.py), and tests check the output of verbs by them. A result is an
object of one of the classes in RESULTS, written as `torch_topoopt.plan.result_json` says.
"""

from __future__ import annotations

import ast
import collections.abc
import functools
import importlib
import inspect
import sys
import types
import typing
from pathlib import Path
from typing import Any

from torch_topoopt.plan import codec, result_json

# By the words of the command: the module, and its classes.
RESULTS: dict[str, tuple[str, ...]] = {
    "profile": ("launcher.profile.profile:ProfiledModel", "launcher.profile.script:ProfiledScript"),
    "plan": ("launcher.plan.plan:PlanResult",),
    "run": ("launcher.run.outcome:RunResult",),
    "demo": ("launcher.run.outcome:RunResult",),
    "join": ("launcher.run.join:Joined",),
    "bench": ("tools.bench.table:BenchResults", "tools.bench.link.command:MeasuredCables"),
    "diff": ("planner.difference:PlanDifference",),
    "compare": ("launcher.simulate.compare:ComparedModel",),
    "simulate": ("sim.flows:FlowsResult", "launcher.simulate.shared_cluster:SharedOutcomes",
                 "launcher.simulate.routed_jobs:RoutedOutcomes"),
    "runs": ("launcher.supervise.runs:RecordedRuns",),
    "status": ("supervision.running_job:RunningJob",),
    "top": ("supervision.running_job:LiveJob",),
    "inspect": ("launcher.supervise.inspect:Inspection",),
    "report": ("launcher.report:WrittenReport",),
    "timeline": ("launcher.supervise.timeline:WrittenTimeline",),
    "export": ("tools.export.command:ExportedFiles", "tools.export.command:RightAlgorithm",
               "tools.export.command:WrongAlgorithm"),
    "topology": ("launcher.plan.topology:FoundNetwork",
                 "launcher.plan.topology_collectives:GraphCandidates",
                 "launcher.plan.topology_collectives:CheckedSchedule"),
    "advise": ("launcher.plan.advise_output:Advice",),
    "alltoall": ("launcher.plan.alltoall:AllToAllOptions",
                 "launcher.plan.alltoall_collectives:CollectiveOptions"),
    "hamiltonian": ("launcher.plan.hamiltonian:TorusCycles",),
    "allocate": ("launcher.plan.allocation_text:BoardsOfJobs",),
    "assign": ("launcher.plan.assign:AssignedPaths",),
    "controller": ("launcher.fabric.controller:ServedController",),
    "probe": ("launcher.fabric.probe:ProbedPorts",),
    "discover": ("launcher.fabric.discover:DiscoveredCluster",),
    "nccl-env": ("launcher.fabric.nccl_env:NcclSettings",),
    "doctor": ("tools.doctor.command_output:Diagnosis",),
    "fabric up": ("launcher.fabric.up:MadeFabric", "launcher.fabric.up:FabricToMake",
                  "launcher.fabric.up_network:MadeNetwork",
                  "launcher.fabric.up_network:NetworkToMake"),
    "fabric down": ("launcher.fabric.down:RemovedFabrics",),
    "fabric list": ("launcher.fabric.list:ListedFabrics",),
    "fabric verify": ("launcher.fabric.verify:VerifiedFabric",),
    "fabric apply": ("launcher.fabric.apply:AppliedPlan",),
    "fabric persist": ("launcher.fabric.persist:PersistedCables",),
    "fabric restore": ("launcher.fabric.switch_verbs:ChangedSwitches",),
    "fabric snapshot": ("launcher.fabric.snapshot:KeptSwitches",),
    "cluster submit": ("tools.queue.commands.submit:SubmittedJob",
                       "tools.queue.commands.submit:ForeseenJob"),
    "cluster status": ("tools.queue.commands.status:ShownQueue",
                       "tools.queue.commands.status:JobDetails"),
    "cluster cancel": ("tools.queue.commands.cancel:CancelledJobs",),
}  # fmt: skip


def result_classes(command: str) -> list[type]:
    """The classes of which one is printed."""
    places = (place.split(":") for place in RESULTS[command])
    return [getattr(importlib.import_module(f"torch_topoopt.{m}"), name) for m, name in places]


def result_schema(command: str) -> dict[str, Any]:
    """The JSON Schema of the output of a command with --json."""
    return schema(*result_classes(command))


_SCALARS = {bool: "boolean", int: "integer", float: "number", str: "string", Path: "string"}
_SCALARS[type(None)] = "null"


def schema(*results: type) -> dict[str, Any]:
    """The schema of an object of one of these classes."""
    known: dict[str, Any] = {}
    options = [_of(cls, known) for cls in results]
    start = options[0] if len(options) == 1 else {"anyOf": options}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema", **start, "$defs": known
    }  # fmt: skip


def _of(annotation: Any, known: dict[str, Any]) -> dict[str, Any]:
    """The schema of a type; those of classes go to `known`."""
    if annotation in (Any, object):
        return {}
    if annotation in _SCALARS:
        return {"type": _SCALARS[annotation]}
    if result_json.is_text(annotation):
        return {"type": "string"}
    if isinstance(annotation, type) and result_json.entries(annotation):
        return _object(annotation, known)
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (types.UnionType, typing.Union):
        return _union([_of(argument, known) for argument in arguments])
    if origin is typing.Literal:
        return {"enum": list(arguments)}
    if origin is tuple and arguments[-1] is not ...:
        items = [_of(argument, known) for argument in arguments]
        return {"type": "array", "prefixItems": items, "minItems": len(items), "items": False}
    if not isinstance(origin, type):
        raise TypeError(f"{annotation!r} has no JSON")
    if issubclass(origin, collections.abc.Mapping):
        return {"type": "object", "additionalProperties": _of(arguments[1], known)}
    if issubclass(origin, collections.abc.Iterable):
        return {"type": "array", "items": _of(arguments[0], known)}
    raise TypeError(f"{annotation!r} has no JSON")


def _union(options: list[dict[str, Any]]) -> dict[str, Any]:
    if all(option.keys() == {"type"} for option in options):
        return {"type": [option["type"] for option in options]}
    return {"anyOf": options}


def _object(cls: Any, known: dict[str, Any]) -> dict[str, Any]:
    name = cls.__name__
    if name not in known:
        known[name] = {}  # first: a class may have itself inside
        optional = set(getattr(cls, "OMIT_IF_NONE", ()))
        if issubclass(cls, codec.Document):
            optional |= codec.sections(cls) | getattr(cls, "LEFT_OUT", frozenset())
        known[name] = _properties(cls, result_json.entries(cls), optional, known)
    return {"$ref": f"#/$defs/{name}"}


def _properties(
    cls: Any, entries: tuple[result_json.Entry, ...], optional: set[str], known: dict[str, Any]
) -> dict[str, Any]:
    found = {}
    for entry in entries:
        if entry.inner:
            found[entry.key] = _properties(cls, entry.inner, set(), known)
            continue
        of_value = _of(_type_at(cls, entry.path), known)
        null = {"type": "null"}
        found[entry.key] = _union([of_value, null]) if entry.may_be_infinite else of_value
    return {
        "type": "object",
        "properties": found,
        "required": [key for key in found if key not in optional],
        "additionalProperties": False,
    }


def _type_at(cls: Any, path: tuple[str, ...]) -> Any:
    """The type of what the attributes lead to; None may be anywhere on the way."""
    found: Any = cls
    optional = False
    for name in path:
        options = typing.get_args(found) if _is_union(found) else (found,)
        optional = optional or type(None) in options
        (holder,) = (option for option in options if option is not type(None))
        found = _type_of(holder, name)
    return found | None if optional else found


def _is_union(annotation: Any) -> bool:
    return typing.get_origin(annotation) in (types.UnionType, typing.Union)


def _type_of(cls: Any, name: str) -> Any:
    """The type of an attribute, or of what a property or a method returns."""
    for base in cls.__mro__:
        attribute = vars(base).get(name)
        if isinstance(attribute, functools.cached_property):
            attribute = attribute.func
        function = attribute.fget if isinstance(attribute, property) else attribute
        if inspect.isfunction(function):
            return _evaluated(function.__annotations__["return"], function.__module__)
        if name in vars(base).get("__annotations__", {}):
            return _evaluated(base.__annotations__[name], base.__module__)
    raise TypeError(f"{cls.__name__} has no annotated attribute {name}")


def _evaluated(annotation: Any, module: str) -> Any:
    if isinstance(annotation, typing.ForwardRef):  # of a NamedTuple
        annotation = annotation.__forward_arg__
    return eval(annotation, _names(module)) if isinstance(annotation, str) else annotation


@functools.cache
def _names(module: str) -> dict[str, Any]:
    """The names of a module, those that it imports for types alone included."""
    found = dict(vars(sys.modules[module]))
    for node in ast.parse(inspect.getsource(sys.modules[module])).body:
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            for line in node.body:
                try:
                    exec(compile(ast.Module([line], []), module, "exec"), found)
                except ImportError:  # a name that is there for types alone, too
                    assert isinstance(line, ast.ImportFrom)
                    names = _names(str(line.module))
                    found |= {alias.name: names[alias.name] for alias in line.names}
    return found
