"""Training iterations under a layout as a flow program.

Blocks compute one after the other. Exchanges of tensor and expert groups delay them; state, keys
and values are exchanged beside them, as far as links are free. Stages follow the schedule pass by
pass. Times of operators are those of the closed form (`search.layouts.times`); the links decide
the rest.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import TYPE_CHECKING, Literal, NamedTuple

from torch_topoopt.op_graph import MeasuredStep
from torch_topoopt.search.accelerators import accelerator
from torch_topoopt.search.layouts.prices import LayoutPrices
from torch_topoopt.search.layouts.software import SOFTWARE, SPLIT_BACKWARD
from torch_topoopt.search.layouts.state import trained_state
from torch_topoopt.search.layouts.times import Groups, StateSizes, fetches_late, parameters_of
from torch_topoopt.search.layouts.wired_boxes import boxes_of
from torch_topoopt.sim.flows import run_program
from torch_topoopt.sim.iteration_program import Computed
from torch_topoopt.sim.layout_exchanges import ExchangeOrigin, Exchanges
from torch_topoopt.sim.pipeline_order import StagePass, pipeline_order

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch_topoopt import _core
    from torch_topoopt.op_graph import OpGraph
    from torch_topoopt.plan import Cluster, Network, Plan
    from torch_topoopt.plan.layout import Layout
    from torch_topoopt.search.layouts.cell_costs import PricedCell
    from torch_topoopt.search.layouts.stages import LayoutStage
    from torch_topoopt.search.layouts.times import CellCopies, StateGroups
    from torch_topoopt.sim.flow_names import FlowName
    from torch_topoopt.sim.layout_exchanges import Collective, Content, Tasks


@dataclass(frozen=True)
class LayoutProgram:
    """Iterations in a program; `ends` has the last task of each. Host h is on server
    `server_of_host[h]`. Links of the network come first, then those inside servers."""

    program: _core.FlowProgram
    ends: list[int]
    server_of_host: list[int]
    flow_names: dict[int, FlowName] = field(repr=False)
    computations: dict[int, Computed] = field(repr=False)

    def computed(self, task: int, priority: int) -> Computed:
        """The computation that is task `task`."""
        return self.computations[task]

    def names(self) -> dict[int, FlowName]:
        """Task number -> name of its flow."""
        return self.flow_names


def layout_program(op_graph: OpGraph, plan: Plan, iterations: int = 1) -> LayoutProgram:
    """`iterations` iterations of `op_graph` under the layout of `plan`, one after another.

    Raises ValueError for an unknown accelerator, a model that cannot be divided so, or no
    iterations.
    """
    if iterations < 1:
        raise ValueError(f"iterations: {iterations} is not at least 1")
    assert plan.layout is not None
    assert plan.trainer is not None
    device = accelerator(plan.cluster.accelerator)
    prices = LayoutPrices(
        op_graph,
        device,
        boxes_of(plan.cluster, device),
        software=SOFTWARE[plan.trainer.software],
        state=trained_state(plan.trainer, device),
    )
    return program_of(prices, plan.cluster, plan.network, plan.layout, iterations)


def with_measured_ranks(
    op_graph: OpGraph, plan: Plan, processor_s: float, ranks_at_once: float
) -> OpGraph:
    """`op_graph` whose simulated ranks compute for `processor_s` on average under the layout of
    `plan`, on processors that run `ranks_at_once` at full speed."""
    busy_s = run_program(layout_program(op_graph, plan).program).device_busy_s
    scale = processor_s / float(busy_s[busy_s > 0].mean())
    at_once = ranks_at_once / plan.cluster.accelerators_per_server
    shared = at_once if at_once < plan.cluster.servers else None
    step = MeasuredStep(0.0, scale, scale, shared)
    return replace(op_graph, measured_step=step).validate()


def program_of(
    prices: LayoutPrices, cluster: Cluster, network: Network, layout: Layout, iterations: int = 1
) -> LayoutProgram:
    """`layout_program` of a priced model."""
    stages = prices.stages(layout)
    if stages is None:
        raise ValueError(f"layout: {prices.costs.op_graph.model} cannot be divided into {layout}")
    steps = _Steps(prices, cluster, network, layout)
    ends: list[int] = []
    for iteration in range(iterations):
        ends.append(steps.add(iteration, ends[-1:]))
    made = steps.exchanges
    return LayoutProgram(made.program, ends, made.server_of_node, made.names, steps.computed)


class _Chunk(NamedTuple):
    """Consecutive cells of a stage."""

    stage: int
    cells: list[PricedCell]


class _Gathers:
    """The parameters of a stage that are gathered for its cells, one cell ahead of those that
    compute, and the gradients that are scattered after them, and copied to the host, those of one
    cell at a time."""

    def __init__(self, begin: Tasks) -> None:
        self.gathered = self.scattered = self.returned = begin
        self.computed = [begin]

    def may_begin(self) -> list[Tasks]:
        """After the gather before, and the computation of the cell before the last one."""
        return [self.gathered, self.computed[max(0, len(self.computed) - 2)]]


class _Steps:
    """Adds the tasks of iterations."""

    def __init__(
        self, prices: LayoutPrices, cluster: Cluster, network: Network, layout: Layout
    ) -> None:
        self._layout, self._model = layout, prices.model
        self._groups = Groups.of(layout)
        self.exchanges = Exchanges(cluster, network, prices.model.boxes, layout)
        op_graph = prices.costs.op_graph
        self._names = [operator.name for operator in op_graph.operators]
        self._step = op_graph.measured_step or MeasuredStep(0.0)
        self._share_processors(cluster.accelerators_per_server)
        stages = prices.stages(layout)
        assert stages is not None
        self._stages = stages
        self._chunks = _chunks_of(layout, stages)
        self._order = pipeline_order(layout)
        self._shards = layout.shards_parameters
        self.computed: dict[int, Computed] = {}
        self._iteration = 0
        self._gathers: list[_Gathers] = []
        self._reduced: dict[int, list[int]] = {}  # by unit: exchanges of gradients

    def _share_processors(self, ranks_per_server: int) -> None:
        """Emulated servers compute on one machine: a unit is a host of the program."""
        if self._step.servers_at_once is None:
            return
        units = self.exchanges.units
        ranks_of_unit = sum(unit.ranks for unit in units) / len(units)
        at_once = self._step.servers_at_once * ranks_per_server / ranks_of_unit
        self.exchanges.program.set_hosts_at_once(at_once)

    def add(self, iteration: int, before: list[int]) -> int:
        """An iteration after other tasks; its last task."""
        made, layout = self.exchanges, self._layout
        self._iteration = iteration
        start = made.join(before)
        free = {
            stage: dict.fromkeys(made.of_stage(stage), start) for stage in range(layout.pipeline)
        }
        self._gathers = [_Gathers(free[stage]) for stage in range(layout.pipeline)]
        self._reduced = {unit: [] for unit in range(len(made.units))}
        early = self._early_gathers(free)
        arrived: dict[tuple[bool, int, int], Tasks] = {}  # backward, chunk, micro-batch
        left = [list(reversed(order)) for order in self._order]
        while any(left):
            before_turn = sum(map(len, left))
            for stage, passes in enumerate(left):
                while passes and self._may_run(stage, passes[-1], arrived):
                    one = passes.pop()
                    free[stage] = self._pass(stage, one, free[stage], arrived, early)
            assert sum(map(len, left)) < before_turn, "stages wait for each other"
        updated: list[int] = []
        for stage in range(layout.pipeline):
            updated += self._update(stage, free[stage]).values()
        return made.join(updated)

    def _may_run(
        self, stage: int, one: StagePass, arrived: dict[tuple[bool, int, int], Tasks]
    ) -> bool:
        """Whether the tasks that a pass waits for are known; "weights" follow their own stage."""
        chunk = one.chunk * self._layout.pipeline + stage
        if one.direction == "weights" or (one.direction == "forward" and chunk == 0):
            return True
        return (one.direction == "backward", chunk, one.micro_batch) in arrived

    # parameters: one pass, and the state of its stage and of the pipeline
    def _pass(
        self,
        stage: int,
        one: StagePass,
        free: Tasks,
        arrived: dict[tuple[bool, int, int], Tasks],
        early: dict[int, Tasks],
    ) -> Tasks:
        number = one.chunk * self._layout.pipeline + stage
        chunk, back = self._chunks[number], one.direction == "backward"
        last = number == len(self._chunks) - 1
        waited = arrived.get((back, number, one.micro_batch))
        begin = free
        if waited is not None and one.direction != "weights":
            begin = self._both(free, waited)
        if one.direction == "weights":
            return self._backward(chunk, one, begin, split="weights")
        if not back:
            end = self._forward(chunk, one, begin, early)
            if last:
                end = self._loss(stage, chunk, end, one)
                arrived[True, number, one.micro_batch] = end
            else:
                sent = chunk.cells[-1]
                part = self._part(sent)
                arrived[False, number + 1, one.micro_batch] = self.exchanges.send(
                    sent.output_bytes, end, part, back=False
                )
            return end
        if last:
            begin = self._compute(begin, self._model.loss_s(self._stages[stage]), "loss", one)
        split = "inputs" if self._layout.schedule == "zero-bubble" else "both"
        end = self._backward(chunk, one, begin, split=split)
        if number > 0:
            sent = self._chunks[number - 1].cells[-1]
            arrived[True, number - 1, one.micro_batch] = self.exchanges.send(
                sent.output_bytes, end, self._part(sent), back=True
            )
        return end

    def _loss(self, stage: int, chunk: _Chunk, begin: Tasks, one: StagePass) -> Tasks:
        """The loss, of whole logits if the trainer gathers them."""
        made, layout, end = self.exchanges, self._layout, begin
        part, groups = self._part(chunk.cells[-1]), self._groups
        if self._model.software.gathers_output:
            logits = self._stages[stage].logits * layout.tensor
            end = made.gather(groups.tensor, logits, end, part, what="activations")
            logits *= layout.context
            end = made.gather(groups.context, logits, end, part, what="activations")
        return self._compute(end, self._model.loss_s(self._stages[stage]), "loss", one)

    def _forward(
        self, chunk: _Chunk, one: StagePass, begin: Tasks, early: dict[int, Tasks]
    ) -> Tasks:
        end = begin
        for cell in chunk.cells:
            its = self._model.cell_seconds(self._layout, cell)
            ready = self._gathered(chunk.stage, cell, end, again=False)
            if cell.cell.begin in early:
                ready = self._both(ready, early[cell.cell.begin])
            exchanged_s, _ = self._state_s(chunk.stage, cell)
            end = self._cell(ready, cell, one, (its.forward_s, its.host_s, 1.0, exchanged_s))
            self._gathers[chunk.stage].computed.append(end)
        return end

    def _backward(self, chunk: _Chunk, one: StagePass, begin: Tasks, *, split: str) -> Tasks:
        """The backward pass, or a half of it: gradients of inputs, or of parameters."""
        layout, end = self._layout, begin
        half, issued = (1.0, 2.0) if split == "both" else (0.5, 2.0 * SPLIT_BACKWARD)
        scatters = split != "inputs"
        for cell in reversed(chunk.cells):
            its = self._model.cell_seconds(layout, cell)
            ready = self._gathered(chunk.stage, cell, end, again=True)
            if split != "weights":
                if layout.recompute == "full" and cell.again == 1:
                    ready = self._cell(ready, cell, one, (its.again_s, 0.0, 0.0, 0.0))
                else:
                    ready = self._compute(ready, its.again_s, "recompute", one, cell)
            gather_s, scatter_s = self._state_s(chunk.stage, cell)
            exchanged_s = gather_s * (layout.reshard and cell.reshards) + scatter_s
            seconds = half * its.backward_s
            if split == "weights":
                end = self._compute(ready, seconds, "gradients of", one, cell)
            else:
                end = self._cell(ready, cell, one, (seconds, issued * its.host_s, 2.0, exchanged_s))
            self._gathers[chunk.stage].computed.append(end)
            if scatters:
                end = self.exchanges.gather(
                    self._groups.tensor, cell.cost.summed_bytes, end, self._part(cell),
                    what="gradients", collective="all_reduce",
                )  # fmt: skip
                end = self._scatter(chunk.stage, cell, one, end)
        if scatters:
            stage = self._stages[chunk.stage]
            summed_s = self._model.summed_s(layout, stage) / layout.interleave
            end = self._compute(end, summed_s, "sum of gradients", one)
        return end

    def _cell(
        self,
        begin: Tasks,
        cell: PricedCell,
        one: StagePass,
        times: tuple[float, float, float, float],
    ) -> Tasks:
        """A pass through a cell: seconds of computation and of the host, how often keys and values
        pass, and seconds of state beside it."""
        seconds, host_s, contexts, exchanged_s = times
        made, groups, cost = self.exchanges, self._groups, cell.cost
        software, part = self._model.software, self._part(cell)
        seconds += software.contention * min(seconds, exchanged_s)
        word = "backward" if one.direction == "backward" else "forward"
        computed = self._compute(begin, seconds, word, one, cell)
        size, count = cost.tensor.size_bytes, cost.tensor.count
        shown = software.exposes
        end = made.gather(
            groups.tensor, shown * size, computed, part, what="activations", count=count
        )
        hidden = begin
        if shown < 1:
            hidden = made.gather(groups.tensor, (1 - shown) * size, begin, part, what="activations")
        end = made.all_to_all(
            groups.expert, cost.expert.size_bytes, end, part, count=cost.expert.count
        )
        others = [end, hidden]
        if contexts:
            context = cost.context
            others.append(
                made.gather(
                    groups.context, contexts * context.size_bytes, begin, part,
                    what="keys and values", count=round(contexts) * context.count,
                )
            )  # fmt: skip
        if host_s:
            others.append({unit: made.join([task], host_s) for unit, task in begin.items()})
        return self._both(*others)

    def _gathered(self, stage: int, cell: PricedCell, begin: Tasks, *, again: bool) -> Tasks:
        """`begin`, and the parameters of a cell are there."""
        kept = not (self._layout.reshard and cell.reshards)
        if not self._shards or (again and kept):
            return begin
        gathers = self._gathers[stage]
        first = [begin] if fetches_late(self._layout) else gathers.may_begin()
        of = self._state(
            self._after(self._both(*first), self._copies(stage, cell).fetch_s),
            parameters_of(cell.cost, copied=self._stages[stage].copied),
            cell,
        )
        gathers.gathered = of
        return self._both(begin, of)

    def _scatter(self, stage: int, cell: PricedCell, one: StagePass, begin: Tasks) -> Tasks:
        """The exchange of a cell's gradients after its backward pass, and when the next may begin:
        FSDP scatters the gradients of one cell at a time, and the host waits to add them to those
        of earlier micro-batches."""
        layout = self._layout
        last = one.micro_batch == layout.micro_batches - 1
        if not last and (layout.zero_stage < 2 or not (self._shards or layout.state_shards > 1)):
            return begin
        if self._shards:
            begin = self._both(begin, self._gathers[stage].scattered)
        sizes = self._model.gradients_of(cell.cost, copied=self._stages[stage].copied)
        if layout.sharding == "none":
            end = self._state(begin, sizes, cell, "copies", "all_reduce")
        else:
            end = self._gathers[stage].scattered = self._state(
                begin, sizes, cell, "shards", "reduce_scatter"
            )
            if last:
                shares = self._groups.shares(sizes)
                end = self._state(end, shares, cell, "replicas", "all_reduce")
            if layout.offload == "host" and (last or layout.replicas == 1):
                end = self._returned(stage, cell, end)
        if layout.sums_on_host and one.micro_batch > 0:
            begin = end = self._after(end, self._copies(stage, cell).sum_s)
            self._gathers[stage].computed[-1] = begin  # the host gathers nothing ahead meanwhile
        for unit, task in end.items():
            self._reduced[unit].append(task)
        return begin

    def _returned(self, stage: int, cell: PricedCell, begin: Tasks) -> Tasks:
        """The copy of a cell's gradients to the host, after those of the cells before."""
        layout, copied = self._layout, self._stages[stage].copied
        shares = self._groups.shares(self._model.gradients_of(cell.cost, copied=copied))
        gathers, copy_s = self._gathers[stage], self._copies(stage, cell).return_s
        begin = self._both(begin, gathers.returned)
        gathers.returned = self._after(begin, copy_s + self._model.last_copy_s(layout, shares))
        return gathers.returned

    def _copies(self, stage: int, cell: PricedCell) -> CellCopies:
        copied = self._stages[stage].copied
        return self._model.copies_s(self._layout, self._groups, cell.cost, copied=copied)

    def _after(self, begin: Tasks, seconds: float) -> Tasks:
        """`begin`, and `seconds` of a copy or of the host."""
        if not seconds:
            return begin
        return {unit: self.exchanges.join([task], seconds) for unit, task in begin.items()}

    def _update(self, stage: int, free: Tasks) -> Tasks:
        """The optimizer's step of a stage, and the parameters that only it shared."""
        made = self.exchanges
        begin = {unit: made.join([task, *self._reduced[unit]]) for unit, task in free.items()}
        seconds = self._model.optimizer_s(self._layout, self._stages[stage])
        end = self._compute(begin, seconds, "optimizer", None)
        if self._gathers_at_the_end and not self._model.software.gathers_early:
            *_, (_, end) = self._all_gathered(stage, end)
        return end

    @property
    def _gathers_at_the_end(self) -> bool:
        return self._layout.sharding in ("optimizer", "gradients")

    def _early_gathers(self, free: dict[int, Tasks]) -> dict[int, Tasks]:
        """Parameters gathered beside the first forward pass, by the begin of their cell."""
        found: dict[int, Tasks] = {}
        if not (self._gathers_at_the_end and self._model.software.gathers_early):
            return found
        for stage, begin in free.items():
            for cell, end in self._all_gathered(stage, begin):
                found[cell.cell.begin] = end
        return found

    def _all_gathered(self, stage: int, begin: Tasks) -> Iterator[tuple[PricedCell, Tasks]]:
        """The parameters of each cell of a stage, one after the other from `begin` on."""
        end, copied = begin, self._stages[stage].copied
        for chunk in self._chunks:
            for cell in chunk.cells if chunk.stage == stage else ():
                end = self._state(end, parameters_of(cell.cost, copied=copied), cell)
                yield cell, end

    # parameters: what is exchanged, by whom and how
    def _state(
        self,
        begin: Tasks,
        sizes: StateSizes,
        cell: PricedCell,
        among: Literal["shards", "replicas", "copies"] = "shards",
        collective: Collective = "all_gather",
    ) -> Tasks:
        end = begin
        one_by_one = self._layout.sharding in ("optimizer", "gradients")
        count = max(1, cell.cost.operators // 2) if one_by_one else 1  # as the closed form
        what: Content = "parameters" if collective == "all_gather" else "gradients"
        of: tuple[tuple[StateGroups, float], ...] = (
            (self._groups.state, sizes.dense),
            (self._groups.expert_state, sizes.experts),
        )
        for groups, size in of:
            end = self.exchanges.gather(
                getattr(groups, among), size, end, self._part(cell),
                what=what, collective=collective, count=count,
            )  # fmt: skip
        return end

    def _state_s(self, stage: int, cell: PricedCell) -> tuple[float, float]:
        """A gather of a cell's parameters and a scatter of its gradients, alone on their links,
        with the copies that run beside computation."""
        if not self._shards:
            return 0.0, 0.0
        copied, copies = self._stages[stage].copied, self._copies(stage, cell)
        gather_s, scatter_s = self._model.shards_s(
            self._layout, self._groups, cell.cost, copied=copied
        )
        fetch_s = 0.0 if fetches_late(self._layout) else copies.fetch_s
        return gather_s + fetch_s, scatter_s + copies.return_s

    def _compute(
        self,
        begin: Tasks,
        seconds: float,
        word: str,
        one: StagePass | None,
        cell: PricedCell | None = None,
    ) -> Tasks:
        """`seconds` on every unit, as measured."""
        if not seconds:
            return begin
        made, step = self.exchanges, self._step
        forward = one is not None and one.direction == "forward"
        seconds *= step.forward_scale if forward else step.backward_scale
        batch = 0 if one is None else one.micro_batch
        name = word if cell is None else f"{self._title(cell)} {word}"
        end: Tasks = {}
        for unit, task in begin.items():
            end[unit] = made.then(made.program.add_compute(made.host_of[unit], seconds), [task])
            self.computed[end[unit]] = Computed(name, batch)
        return end

    def _both(self, *tasks: Tasks) -> Tasks:
        """The later of tasks, by unit."""
        first, *others = tasks
        if all(other is first for other in others):
            return first
        return {
            unit: self.exchanges.join(dict.fromkeys(of[unit] for of in tasks)) for unit in first
        }

    def _title(self, cell: PricedCell) -> str:
        first, last = self._names[cell.cell.begin], self._names[cell.cell.end - 1]
        return first if first == last else f"{first} to {last}"

    def _part(self, cell: PricedCell) -> ExchangeOrigin:
        return ExchangeOrigin(tuple(self._names[cell.cell.begin : cell.cell.end]), self._iteration)


def _chunks_of(layout: Layout, stages: tuple[LayoutStage, ...]) -> list[_Chunk]:
    """The chunks of all stages, in the order of the model."""
    cells = [(one, number) for number, stage in enumerate(stages) for one in stage.in_order]
    cells.sort(key=lambda of: of[0].cell.begin)
    found = [
        _Chunk(stage, [one for one, _ in run])
        for stage, run in groupby(cells, key=lambda of: of[1])
    ]
    assert len(found) == layout.pipeline * layout.interleave or layout.pipeline == 1
    return found
