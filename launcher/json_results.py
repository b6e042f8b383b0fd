"""The result classes that each verb prints with `--json`, and their JSON Schema.

`run` prints figures without a class of their own; `bench` prints the format of nccl-tests.
"""

from __future__ import annotations

import importlib
from typing import Any

from torch_topoopt.plan.result_schema import schema

# By the words of the command: the module, and its classes.
RESULTS: dict[str, tuple[str, ...]] = {
    "profile": ("launcher.profile.profile:ProfiledModel", "launcher.profile.script:ProfiledScript"),
    "plan": ("launcher.plan.plan:PlanResult",),
    "diff": ("planner.difference:PlanDifference",),
    "compare": ("launcher.simulate.compare:ComparedModel",
                "launcher.simulate.compare_paper:PaperTable"),
    "simulate": ("sim.flows:FlowsResult", "launcher.simulate.shared_cluster:SharedOutcomes",
                 "launcher.simulate.routed_jobs:RoutedOutcomes"),
    "status": ("supervision.running_job:RunningJob",),
    "top": ("supervision.running_job:LiveJob",),
    "inspect": ("launcher.supervise.inspect:Inspection",),
    "report": ("launcher.report:WrittenReport",),
    "timeline": ("launcher.supervise.timeline:WrittenTimeline",),
    "export": ("tools.export.command:ExportedFiles", "tools.export.command:RightAlgorithm",
               "tools.export.command:WrongAlgorithm"),
    "topology": ("launcher.plan.topology:FoundNetwork",),
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
    "fabric restore": ("launcher.fabric.switch_verbs:ChangedSwitches",),
    "fabric snapshot": ("launcher.fabric.snapshot:KeptSwitches",),
    "cluster submit": ("tools.queue.commands.submit:SubmittedJob",
                       "tools.queue.commands.submit:ForeseenJob"),
    "cluster status": ("tools.queue.commands.status:ShownQueue",
                       "tools.queue.commands.status:JobDetails"),
    "cluster cancel": ("tools.queue.commands.cancel:CancelledJobs",),
}  # fmt: skip
UNTYPED = frozenset({"run", "bench"})


def result_classes(command: str) -> list[type]:
    """The classes of which one is printed."""
    places = (place.split(":") for place in RESULTS[command])
    return [getattr(importlib.import_module(f"torch_topoopt.{m}"), name) for m, name in places]


def result_schema(command: str) -> dict[str, Any]:
    """The JSON Schema of the output of a command with --json."""
    return schema(*result_classes(command))
