"""Every format by its name, and the files of a plan in it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from torch_topoopt.tools.export.errors import ExportError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch_topoopt.fabric.cluster_file.cluster_file import ClusterFile
    from torch_topoopt.op_graph import OpGraph
    from torch_topoopt.plan import Plan
    from torch_topoopt.profile.chakra_format import ChakraTrace

Files = dict[str, bytes]


@dataclass(frozen=True)
class Exported:
    """A plan, with what some formats need beside it: the operators, and the machines.

    `placed_op_graph` raises an error unless the plan places operators."""

    plan: Plan
    op_graph: Callable[[], OpGraph]
    placed_op_graph: Callable[[], OpGraph]
    file: ClusterFile | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """Of the servers; none without a cluster file. Raises FabricError for another plan's."""
        if self.file is None:
            return ()
        from torch_topoopt.fabric.cluster.static_plan import check_servers

        check_servers(self.plan, self.file)
        return tuple(server.name for server in self.file.servers)

    def cells(self) -> list[bool]:
        """Of the model, in order: whether each is a block."""
        from torch_topoopt.search.layouts.cells import cells_of

        return [cell.block for cell in cells_of(self.op_graph())]


class Format(NamedTuple):
    """`is_folder`: several files."""

    does: str
    is_folder: bool
    files: Callable[[Exported], Files]


def _encoded(texts: Mapping[str, str]) -> Files:
    return {name: text.encode() for name, text in texts.items()}


def _nccl(exported: Exported) -> Files:
    from torch_topoopt.tools.export.host_order import nccl_files

    return _encoded(nccl_files(exported.plan, exported.file))


def _msccl(exported: Exported) -> Files:
    from torch_topoopt.tools.export import msccl, msccl_check

    texts = {
        "allreduce.xml": msccl.all_reduce(exported.plan).xml(),
        "alltoall.xml": msccl.all_to_all(exported.plan).xml(),
    }
    for text in texts.values():
        msccl_check.check_text(text)  # never write an algorithm that moves wrong bytes
    return _encoded(texts)


def _chakra(exported: Exported) -> Files:
    from torch_topoopt.tools.export.chakra import traces

    return _encoded_traces(traces(exported.plan, exported.placed_op_graph()))


def _encoded_traces(traces: Sequence[ChakraTrace], name: str = "workload") -> Files:
    from torch_topoopt.profile.chakra_format import encode

    return {f"{name}.{rank}.et": encode(trace) for rank, trace in enumerate(traces)}


def _astra_sim(exported: Exported) -> Files:
    from torch_topoopt.tools.export.astra_sim import configuration, without_default_group
    from torch_topoopt.tools.export.chakra import traces
    from torch_topoopt.tools.export.custom_collectives import custom_collectives

    plan = exported.plan
    workload = [without_default_group(t) for t in traces(plan, exported.placed_op_graph())]
    rings = custom_collectives(plan, workload)
    files = _encoded_traces(rings.workload) | _encoded(configuration(plan, rings))
    for name, ranks in rings.traces.items():
        files |= _encoded_traces(ranks, name)
    return files


def _dot(exported: Exported) -> Files:
    from torch_topoopt.tools.export.graphs import dot

    return {"network.dot": dot(exported.plan, exported.names).encode()}


def _graphml(exported: Exported) -> Files:
    from torch_topoopt.tools.export.graphs import graphml

    return {"network.graphml": graphml(exported.plan, exported.names).encode()}


def _flexflow(exported: Exported) -> Files:
    from torch_topoopt.search.flexflow_strategy import flexflow_text

    if exported.plan.micro_batches > 1:
        raise ExportError(
            f"flexflow: its format cannot say {exported.plan.micro_batches} micro-batches"
        )
    text = flexflow_text(exported.placed_op_graph(), exported.plan.strategy)
    return {"strategy.txt": text.encode()}


def _mlx(exported: Exported) -> Files:
    from torch_topoopt.tools.export.host_order import mlx_hostfile

    return {"hostfile.json": mlx_hostfile(exported.plan, exported.file).encode()}


def _torchtitan(exported: Exported) -> Files:
    from torch_topoopt.tools.export import trainers

    text = trainers.torchtitan(exported.plan, exported.cells)
    return _for_hosts(exported, {"torchtitan_plan.py": text})


def _megatron(exported: Exported) -> Files:
    from torch_topoopt.tools.export import trainers

    return _for_hosts(exported, trainers.megatron(exported.plan, exported.cells))


def _deepspeed(exported: Exported) -> Files:
    from torch_topoopt.tools.export import trainers

    return _for_hosts(exported, {"deepspeed.json": trainers.deepspeed(exported.plan)})


def _accelerate(exported: Exported) -> Files:
    from torch_topoopt.tools.export import trainers

    return _for_hosts(exported, trainers.accelerate(exported.plan))


def _for_hosts(exported: Exported, texts: Mapping[str, str]) -> Files:
    from torch_topoopt.tools.export.trainers import hosts

    return _encoded({**texts, "hosts.txt": hosts(exported.plan, exported.names)})


FORMATS: dict[str, Format] = {
    "nccl": Format("NCCL's variables, the order of hosts, and what NCCL cannot do", True, _nccl),
    "msccl": Format("MSCCL XML: AllReduce on all rings, all-to-all over all routes", True, _msccl),
    "chakra": Format("Chakra execution traces of an iteration, one for each server", True, _chakra),
    "astra-sim": Format("Chakra traces, and ASTRA-sim's configuration files", True, _astra_sim),
    "dot": Format("the network for Graphviz", False, _dot),
    "graphml": Format("the network for Gephi, yEd, networkx", False, _graphml),
    "flexflow": Format("the strategy in FlexFlow's text", False, _flexflow),
    "mlx": Format("the ring as a hostfile of mlx.launch (needs --cluster)", False, _mlx),
    "torchtitan": Format("the layout for torchtitan 0.3, and the hosts", True, _torchtitan),
    "megatron": Format("the layout as arguments of Megatron-LM, and the hosts", True, _megatron),
    "deepspeed": Format("the layout as DeepSpeed's JSON, and the hosts", True, _deepspeed),
    "accelerate": Format(
        "the layout as accelerate's file and variables, and the hosts", True, _accelerate
    ),
}
