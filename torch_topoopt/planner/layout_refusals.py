"""Messages where no layout fits: the memory of the simple ones, and what would help."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from torch_topoopt.op_graph import OpGraph
    from torch_topoopt.plan import Cluster
    from torch_topoopt.plan.layout import Layout
    from torch_topoopt.planner.options import PlanningOptions
    from torch_topoopt.search.layouts.prices import LayoutPrice, LayoutPrices


_WORTH_SAYING = 0.01  # of the memory


class LayoutJob(Protocol):
    """The job that does not fit."""

    op_graph: OpGraph
    cluster: Cluster
    options: PlanningOptions

    @property
    def accelerators(self) -> int: ...

    @property
    def memory_bytes(self) -> float: ...

    def data_parallel(self) -> Layout: ...


def what_would_fit(prices: LayoutPrices, price: LayoutPrice | None, job: LayoutJob) -> str:
    """One line: the memory of one accelerator, what `price` needs (data parallelism if None), and
    with state sharded and activations computed again."""
    device = job.cluster.accelerator
    what = "this layout"
    if price is None:
        plain = job.data_parallel()
        price, what = prices.price(replace(plain, micro_batch=1)), "data parallelism"
    assert price is not None
    memory = price.memory
    options = job.options
    optimizer = options.optimizer or ("optimizer" if options.optimizer_factor else "AdamW")
    text = (
        f"accelerator: one {device} has {_gb(job.memory_bytes)} GB of memory; {what} needs "
        f"{_gb(memory.total)} GB (weights {_gb(memory.parameters)}, gradients "
        f"{_gb(memory.gradients)}, {optimizer} {_gb(memory.optimizer)}, activations "
        f"{_gb(memory.activations)})"
    )
    layout = price.layout
    copies = layout.data * layout.context
    if copies > 1 and layout.zero_stage < 3:
        layout = replace(layout, sharding="parameters", state_shards=copies)
        sharded = prices.price(layout)
        if sharded is not None:
            text += f"; sharded over {copies}: {_gb(sharded.memory.total)} GB"
            price = sharded
    if layout.recompute != "full":
        again = prices.price(replace(layout, recompute="full"))
        saved = 0.0 if again is None else price.memory.total - again.memory.total
        if saved > _WORTH_SAYING * price.memory.total:
            text += f"; recomputation saves {_gb(saved)}"
    if layout.offload == "none" and prices.model.host is not None:
        on_host = prices.price(
            replace(layout, sharding="parameters", state_shards=copies, offload="host")
        )
        if on_host is not None:
            saved = price.memory.total - on_host.memory.total
            text += (
                f"; offloading to the host saves {_gb(saved)}, and takes "
                f"{_gb(on_host.memory.host)} of the {_gb(prices.host_bytes)} there"
            )
    return f"{text}; use more servers, a larger accelerator or a smaller batch"


def too_small_host(prices: LayoutPrices, price: LayoutPrice, cluster: Cluster) -> str:
    """One line: what the state of `price` needs of its host's memory."""
    return (
        f"offload: one {cluster.accelerator} needs {_gb(price.memory.host)} GB of its host's "
        f"memory, and has {_gb(prices.host_bytes)} GB of it; use more servers, or hosts with more "
        "memory (--host-memory-gb)"
    )


def _gb(size_bytes: float) -> str:
    return f"{size_bytes / 1e9:.0f}" if size_bytes >= 10e9 else f"{size_bytes / 1e9:.1f}"
