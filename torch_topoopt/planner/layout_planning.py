"""Plans of layouts: the fastest are wired, and priced again on their networks."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from torch_topoopt.plan import Demand, Group, Network, Plan, Prediction
from torch_topoopt.plan.layout import DEFAULT_TRAINER, Layout, Trainer
from torch_topoopt.planner.layout_refusals import too_small_host, what_would_fit
from torch_topoopt.planner.options import CONVERGED, PlanningOptions
from torch_topoopt.planner.pricing import rounded
from torch_topoopt.search.accelerators import accelerator, class_of
from torch_topoopt.search.layouts.host_state import usable_host_bytes
from torch_topoopt.search.layouts.memory import usable_bytes
from torch_topoopt.search.layouts.prices import NO_HOST, LayoutPrices
from torch_topoopt.search.layouts.software import SOFTWARE, WITHOUT_OVERHEADS
from torch_topoopt.search.layouts.space import fastest_layouts
from torch_topoopt.search.layouts.state import trained_state
from torch_topoopt.search.layouts.traffic import layout_demand, layout_placements
from torch_topoopt.search.layouts.wired_boxes import boxes_of
from torch_topoopt.search.lowering import lower_network
from torch_topoopt.search.optimizers import optimizer_seconds
from torch_topoopt.sim.flows import run_program
from torch_topoopt.sim.layout_program import program_of
from torch_topoopt.topology.best.network_search import NetworkSearch
from torch_topoopt.topology.find_network import find_network
from torch_topoopt.topology.finder.single_ring import single_ring
from torch_topoopt.topology.routing.loads import link_load_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from torch_topoopt.op_graph import OpGraph
    from torch_topoopt.plan import Cluster
    from torch_topoopt.planner.pricing import WiringMode
    from torch_topoopt.search.layouts.prices import LayoutPrice
    from torch_topoopt.search.strategies import Strategy

_WIRED = 8  # layouts that get networks of their own


class WiredLayout(NamedTuple):
    """A layout priced on a network, its demand, and its price on an ideal switch."""

    price: LayoutPrice
    network: Network
    demand: Demand
    ideal: LayoutPrice
    mode: str


def trainer_of(options: PlanningOptions) -> Trainer:
    """What `options` say of the trainer of layouts."""
    if options.optimizer is None and options.optimizer_factor:
        factor = options.optimizer_factor
        return Trainer(options.software, optimizer_factor=factor, precision=options.precision)
    name = options.optimizer or DEFAULT_TRAINER.optimizer
    return Trainer(options.software, name, precision=options.precision)


def trained_by(trainer: Trainer) -> PlanningOptions:
    """Options of layouts with that trainer: the inverse of `trainer_of`."""
    factor = trainer.optimizer_factor
    return PlanningOptions(
        strategy_space="layouts",
        optimizer=None if factor else trainer.optimizer,
        optimizer_factor=factor,
        software=trainer.software,
        precision=trainer.precision,
    )


class LayoutPlanning:
    """Layouts of `op_graph` on `cluster`, found and wired as `options` say."""

    def __init__(
        self,
        op_graph: OpGraph,
        cluster: Cluster,
        options: PlanningOptions,
        on_candidate: Callable[[int, int, float], None] | None = None,
    ) -> None:
        """`on_candidate` is called with the layouts that are wired, of how many, and the least
        seconds so far."""
        self.op_graph = op_graph
        self.cluster = cluster
        self.options = options
        self._on_candidate = on_candidate
        self.device = accelerator(cluster.accelerator)
        self.trainer = trainer_of(options)
        self.state = trained_state(self.trainer, self.device)
        self.prices = LayoutPrices(
            op_graph,
            self.device,
            boxes_of(cluster, self.device),
            software=SOFTWARE[self.trainer.software],
            state=self.state,
            host_bytes=usable_host_bytes(self.device, cluster),
        )
        self._networks: dict[tuple[WiringMode, Demand], Network] = {}

    @property
    def has_blocks(self) -> bool:
        """Whether layers with attention repeat, as in transformers."""
        operators = self.op_graph.operators
        return any(
            class_of(operator) == "attention"
            for layer in self.op_graph.layers
            for operator in operators[layer.starts[0] : layer.starts[0] + layer.length]
        )

    @property
    def accelerators(self) -> int:
        """Those of all servers."""
        return self.cluster.servers * self.cluster.accelerators_per_server

    @property
    def memory_bytes(self) -> float:
        """Bytes that a layout may use on one accelerator, its runtime included."""
        if not self.cluster.memory_limited:
            return math.inf
        return usable_bytes(self.device)

    def data_parallel(self) -> Layout:
        """Whole copies of the model that share the batch, or a part of the accelerators' number if
        there are fewer samples."""
        batch = self.op_graph.batch_size
        data = max(k for k in range(1, self.accelerators + 1) if batch % k == 0)
        return Layout(data=data, micro_batch=batch // data)

    def without_overheads_s(self, plan: Plan) -> float:
        """Seconds of the layout of `plan` by the flow simulator, in the terms of strategies:
        without overheads of trainer and messages, on links of full rate; with the optimizer's
        step."""
        assert plan.layout is not None
        boxes = replace(
            self.prices.model.boxes,
            step_s=0.0,
            hop_s=self.cluster.link_latency_s,
            launch_s=0.0,
            port_efficiency=1.0,
        )
        state = self.state._replace(summed=0.0)
        prices = LayoutPrices(
            self.op_graph, self.device, boxes, software=WITHOUT_OVERHEADS, state=state
        )
        made = program_of(prices, self.cluster, plan.network, plan.layout)
        return run_program(made.program).completion_s

    def optimizer_s(self, strategy: Strategy) -> float:
        """Seconds of the optimizer's step on the server that updates most."""
        updated = [0.0] * self.cluster.servers
        for operator, placement in zip(self.op_graph.operators, strategy, strict=True):
            for server in placement.servers:
                updated[server] += operator.parameter_gradient_bytes / placement.parameter
        return optimizer_seconds(self.device, max(updated) * self.state.moved)

    def check_state(self) -> None:
        """Raises ValueError, with what would fit, if all accelerators together, and their hosts,
        cannot hold the model's state."""
        state, offload = self.state, self.options.offload
        if offload == "host" and self.device.host is None:
            raise ValueError(NO_HOST)
        room = self.memory_bytes * (offload != "host")
        if offload != "none":
            room += self.prices.host_bytes
        trained = self.op_graph.parameter_gradient_bytes
        size = self.op_graph.parameter_bytes + trained * (state.gradient + state.optimizer)
        if size > self.accelerators * room:
            raise ValueError(what_would_fit(self.prices, None, self))

    def candidates(self) -> list[LayoutPrice]:
        """The fastest layouts on the given network, else on an ideal switch; raises ValueError with
        what would fit if none does."""
        layout = self.options.layout
        if layout is not None:
            price = self.prices.price(layout)
            why = "" if price is not None else self.prices.costs.why_not(layout)
            if not why and self.options.why_not_layout is not None:
                why = self.options.why_not_layout(layout)
            if why or price is None:
                raise ValueError(f"layout: {why}")
            if price.memory.total > self.memory_bytes:
                raise ValueError(what_would_fit(self.prices, price, self))
            if not self.prices.fits(price, self.memory_bytes):
                raise ValueError(too_small_host(self.prices, price, self.cluster))
            return [price]
        found = self.fastest(self.prices_on(self.options.network))
        if not found:
            raise ValueError(what_would_fit(self.prices, None, self))
        return found

    def fastest(self, prices: LayoutPrices) -> list[LayoutPrice]:
        """The fastest layouts that fit, by `prices`."""
        return fastest_layouts(
            prices,
            self.accelerators,
            self.op_graph.batch_size,
            memory_bytes=self.memory_bytes,
            count=_WIRED,
            most_experts=_most_experts(self.op_graph),
            why_not=self.options.why_not_layout,
            offload=self.options.offload,
        )

    def fastest_of(self, layouts: Sequence[Layout]) -> Layout:
        """The fastest of `layouts` that fits and can be executed, by itself; the first if none."""
        prices, why_not = self.prices_on(self.options.network), self.options.why_not_layout
        priced = [prices.price(one) for one in layouts if why_not is None or not why_not(one)]
        fit = [one for one in priced if one and prices.fits(one, self.memory_bytes)]
        return min(fit, key=lambda one: one.times.step_s).layout if fit else layouts[0]

    def prices_on(self, network: Network | None) -> LayoutPrices:
        """The prices on `network`, or on an ideal switch."""
        if network is None:
            return self.prices
        return self.prices.on(boxes_of(self.cluster, self.device, network))

    def best(self) -> WiredLayout:
        """The fastest pair of a layout and a network; raises as `candidates`.

        The fastest layouts on an ideal switch are wired. Then those that are fastest on the best
        network are, until a round gains little, or the best pair is as fast as any on the switch.
        """
        found = self.candidates()
        best = self._fastest_pair(found, None)
        if self.options.layout is not None or self.options.network is not None:
            return best
        least_s = found[0].times.step_s
        before_s = math.inf
        while least_s < best.price.times.step_s < before_s * (1 - CONVERGED):
            before_s = best.price.times.step_s
            best = self._fastest_pair(self.fastest(self.prices_on(best.network)), best)
        return best

    def _fastest_pair(self, found: list[LayoutPrice], best: WiredLayout | None) -> WiredLayout:
        """The fastest of `best` and the layouts of `found` that may be faster."""
        for done, candidate in enumerate(found):
            least_s = math.inf if best is None else best.price.times.step_s
            if self._on_candidate is not None:
                self._on_candidate(done, len(found), least_s)
            if self._price(self.prices, candidate.layout).times.step_s >= least_s:
                continue  # even on an ideal switch
            wired = self.fastest_wired(candidate.layout)
            if wired.price.times.step_s < least_s:
                best = wired
        assert best is not None
        return best

    def fastest_wired(self, layout: Layout) -> WiredLayout:
        """`layout` on its fastest network."""
        return min(self._wired(layout), key=lambda wired: wired.price.times.step_s)

    def _wired(self, layout: Layout) -> Iterable[WiredLayout]:
        """`layout` on the given network, or on one of each mode."""
        ideal = self._price(self.prices, layout)
        demand = layout_demand(ideal, self.cluster.accelerators_per_server, self.state)
        modes: list[WiringMode] = [self.options.first_mode]
        if self.options.mode == "best" and self.options.network is None:
            modes.append("best")
        for mode in modes:
            network = self._with_rings(self._network(layout, demand, mode), demand)
            price = self._price(self.prices_on(network), layout)
            yield WiredLayout(price, network, demand, ideal, str(mode))

    def _network(self, layout: Layout, demand: Demand, mode: WiringMode) -> Network:
        """The existing network, else TopologyFinder's; in mode best the one with the least time."""
        options = self.options
        if options.network is not None:
            return options.network
        key = mode, demand
        if key not in self._networks:
            price = partial(self._seconds, layout) if mode == "best" else None
            self._networks[key] = find_network(
                self.cluster,
                demand,
                mode=mode,
                routing=options.routing,
                search=NetworkSearch(seed=options.seed, price=price),
            )
        return self._networks[key]

    def _seconds(self, layout: Layout, network: Network) -> float:
        return self._price(self.prices_on(network), layout).times.step_s

    @staticmethod
    def _price(prices: LayoutPrices, layout: Layout) -> LayoutPrice:
        price = prices.price(layout)
        assert price is not None
        return price

    def _with_rings(self, network: Network, demand: Demand) -> Network:
        """`network` with rings for each group of `demand`."""
        known = {tuple(sorted(group.servers)) for group in network.groups}
        missing = [g.servers for g in demand.groups if tuple(sorted(g.servers)) not in known]
        if not missing:
            return network
        core = lower_network(self.cluster, network)
        added = tuple(Group(servers, tuple(core.rings(servers))) for servers in missing)
        return Network(network.links, (*network.groups, *added), network.routes)

    def plan(self) -> Plan:
        """The Plan of the best pair; raises as `candidates`."""
        return self.plan_of(self.best())

    def plan_of(self, best: WiredLayout) -> Plan:
        """The Plan of a pair."""
        options, cluster, times = self.options, self.cluster, best.price.times
        layout = self.prices.cut(best.price.layout)
        fixed = options.network is not None
        ring = cluster
        if fixed:  # of any degree, while a ring takes two ports
            ring = replace(cluster, degree=2 if cluster.servers > 2 else 1, port_gbps=None)
        one_ring = boxes_of(cluster, self.device, single_ring(ring, best.demand), schedules=False)
        single_ring_s = self._price(self.prices.on(one_ring), layout).times.step_s
        box = cluster.accelerators_per_server
        return Plan(
            version=Plan.VERSION,
            model=self.op_graph.model,
            batch_size=self.op_graph.batch_size,
            seed=options.seed,
            mode="fixed" if fixed else str(options.mode),
            routing="shortest" if fixed else str(options.routing),
            strategy_space="layouts",
            cluster=cluster,
            network=best.network,
            demand=best.demand,
            prediction=Prediction(
                iteration_s=rounded(times.step_s),
                compute_s=rounded(times.compute_s),
                single_ring_s=rounded(single_ring_s),
                ideal_switch_s=rounded(best.ideal.times.step_s),
                link_bytes=link_load_bytes(best.network, best.demand),
            ),
            rounds=(),
            search=(),
            strategy=layout_placements(self.op_graph, best.price, box),
            micro_batches=layout.micro_batches,
            layout=layout,
            trainer=self.trainer,
        ).validate()


def _most_experts(op_graph: OpGraph) -> int:
    """The experts of a mixture, 1 without any."""
    found = (operator.split("experts") for operator in op_graph.operators)
    return max((split.max_degree for split in found if split is not None), default=1)
