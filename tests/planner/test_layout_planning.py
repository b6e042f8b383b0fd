"""Plans of layouts: priced on their networks, never worse than what was wired, and refusals."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.refusals import refused
from support.small_op_graphs import decoder, embeddings

from torch_topoopt.plan import Cluster, Demand, GroupDemand, Plan
from torch_topoopt.plan.layout import Layout, layout_from
from torch_topoopt.planner.alternation import PlanProgress, plan
from torch_topoopt.planner.difference import difference
from torch_topoopt.planner.layout_figures import layout_figures, other_layouts
from torch_topoopt.planner.layout_planning import LayoutPlanning
from torch_topoopt.planner.options import PlanningOptions
from torch_topoopt.search.layouts.space import divisions, shardings
from torch_topoopt.search.layouts.traffic import layout_demand
from torch_topoopt.search.strategies import everywhere
from torch_topoopt.sim.iteration import predict
from torch_topoopt.topology.find_network import find_network

H100 = Cluster(4, 2, 200.0, accelerator="h100:bf16")
BOXES = replace(H100, accelerators_per_server=4)
LAYOUTS = PlanningOptions(strategy_space="layouts")
GRAPH = decoder(4)


@pytest.mark.parametrize("cluster", [H100, BOXES, Cluster(1, 1, 10.0, accelerators_per_server=8)])
def test_a_plan_has_its_layout_its_demand_and_its_placements(cluster: Cluster) -> None:
    made = plan(GRAPH, cluster, LAYOUTS)
    assert Plan.from_json(made.to_json()) == made
    assert made.version == Plan.VERSION
    assert made.strategy_space == "layouts"
    assert made.layout is not None
    assert made.layout.accelerators == cluster.servers * cluster.accelerators_per_server
    assert made.layout.batch_size == made.batch_size == GRAPH.batch_size
    assert [p.operator for p in made.strategy] == [o.name for o in GRAPH.operators]
    assert made.prediction.ideal_switch_s <= made.prediction.iteration_s
    assert made.prediction.iteration_s <= made.prediction.single_ring_s * (1 + 1e-9)
    assert plan(GRAPH, cluster, LAYOUTS) == made


def test_the_plan_is_the_fastest_of_the_wired_layouts() -> None:
    planning = LayoutPlanning(GRAPH, BOXES, LAYOUTS)
    best = planning.best()
    for candidate in planning.candidates():
        wired = planning.fastest_wired(candidate.layout)
        assert best.price.times.step_s <= wired.price.times.step_s
    state = planning.state
    assert best.demand == layout_demand(best.ideal, 4, state)


def test_no_layout_is_much_faster_on_a_network_of_its_own() -> None:
    """All layouts, each wired for its own demand, on links that are slow."""
    small = decoder(4, batch_size=4)
    cluster = Cluster(4, 2, 10.0, accelerators_per_server=2, accelerator="h100:bf16")
    planning = LayoutPlanning(small, cluster, LAYOUTS)
    least_s = min(
        planning.fastest_wired(price.layout).price.times.step_s
        for division in divisions(8, small.batch_size, 1)
        for sharded in shardings(division, 2)
        if (price := planning.prices.price(sharded)) is not None
        and price.memory.total <= planning.memory_bytes
    )
    assert planning.best().price.times.step_s <= 1.05 * least_s


def test_mode_best_is_never_slower_than_mode_paper() -> None:
    slow = replace(BOXES, link_gbps=10.0, degree=3)
    paper = plan(GRAPH, slow, LAYOUTS)
    best = plan(GRAPH, slow, replace(LAYOUTS, mode="best"))
    assert best.prediction.iteration_s <= paper.prediction.iteration_s


def test_a_given_network_is_kept() -> None:
    everyone = Demand((GroupDemand((0, 1, 2, 3), 10**9),), ())
    network = find_network(H100, everyone)
    made = plan(GRAPH, H100, replace(LAYOUTS, network=network))
    assert made.network.links == network.links
    assert made.mode == "fixed"


def test_a_given_layout_is_priced_alone() -> None:
    layout = layout_from("tensor=4,sharding=optimizer,micro_batch=2", 16, GRAPH.batch_size)
    assert layout == Layout(
        tensor=4, data=4, sharding="optimizer", state_shards=4, micro_batch=2, micro_batches=2
    )
    made = plan(GRAPH, BOXES, replace(LAYOUTS, layout=layout))
    free = plan(GRAPH, BOXES, LAYOUTS)
    assert made.layout == layout
    assert made.prediction.iteration_s >= free.prediction.iteration_s


def test_the_figures_of_a_plan_are_those_of_its_prediction() -> None:
    made = plan(GRAPH, BOXES, LAYOUTS)
    figures = layout_figures(GRAPH, made)
    assert figures.times.step_s == pytest.approx(made.prediction.iteration_s)
    assert figures.memory.total < 80e9


def test_other_kinds_are_no_faster_than_the_plan() -> None:
    made = plan(GRAPH, BOXES, LAYOUTS)
    others = other_layouts(GRAPH, made, LAYOUTS)
    assert {"data parallel", "pipeline", "tensor in a box x FSDP"} <= {
        other.kind for other in others
    }
    for other in others:
        assert other.layout != made.layout
        fits = "GB more" not in other.why_not
        assert not fits or other.iteration_s >= made.prediction.iteration_s * (1 - 1e-9)


def test_only_blocks_that_do_not_fit_are_computed_again() -> None:
    large = decoder(8, output=4 * 10**10)
    made = plan(large, replace(H100, link_gbps=10.0), LAYOUTS)
    layout = made.layout
    assert layout is not None
    assert 0 < sum(layout.recompute_blocks) < 8
    assert Plan.from_json(made.to_json()) == made
    every = replace(layout, recompute_blocks=())
    full = plan(large, replace(H100, link_gbps=10.0), replace(LAYOUTS, layout=every))
    assert made.prediction.iteration_s < full.prediction.iteration_s
    changed = {change.field: change.a for change in difference(made, full).fields}
    assert changed == {"layout.recompute_blocks": layout.recompute_blocks}
    none = replace(every, recompute="none")
    with refused(ValueError, "activations"):
        plan(large, replace(H100, link_gbps=10.0), replace(LAYOUTS, layout=none))


def test_sharded_state_fits_where_copies_do_not() -> None:
    """16 bytes a parameter on each accelerator, or a sixteenth of that."""
    large = decoder(8, parameters=10**9, batch_size=16)  # 18 GB of parameters, 144 GB of state
    made = plan(large, BOXES, LAYOUTS)
    assert made.layout is not None
    assert made.layout.state_shards > 1 or made.layout.tensor * made.layout.pipeline > 1


def test_a_refusal_names_what_is_needed_and_what_would_help() -> None:
    huge = decoder(8, parameters=10**11)
    for space in ("layouts", "all"):
        options = PlanningOptions(strategy_space=space, evaluations=10)  # type: ignore[arg-type]
        with refused(
            ValueError, "h100:bf16", "data parallelism", "weights 1800", "gradients 1800",
            "AdamW 10800", "sharded over 4",
        ):  # fmt: skip
            plan(huge, H100, options)


CARDS = Cluster(1, 1, 10.0, accelerators_per_server=4, accelerator="rtx-4090:bf16")
LARGE = decoder(8, parameters=10**9, batch_size=16)  # 144 GB of state, on 96 GB


def test_state_that_does_not_fit_goes_to_the_host() -> None:
    made = plan(LARGE, CARDS, LAYOUTS)
    assert made.layout is not None
    assert made.layout.offload == "host"
    assert Plan.from_json(made.to_json()) == made
    figures = layout_figures(LARGE, made)
    assert figures.memory.host > figures.memory.total - figures.memory.activations
    with refused(ValueError, "rtx-4090:bf16", "sharded over 4", "offloading", "58"):
        plan(LARGE, CARDS, replace(LAYOUTS, offload="none"))


def test_state_that_fits_goes_to_the_host_only_if_it_is_told_to() -> None:
    without = plan(GRAPH, BOXES, replace(LAYOUTS, offload="none"))
    assert plan(GRAPH, BOXES, LAYOUTS) == without
    on_host = plan(GRAPH, BOXES, replace(LAYOUTS, offload="host"))
    assert on_host.layout is not None
    assert on_host.layout.offload == "host"
    assert on_host.prediction.iteration_s > without.prediction.iteration_s


def test_a_host_with_less_memory_is_refused() -> None:
    small = replace(CARDS, host_memory_gb=128.0)
    layout = layout_from("sharding=parameters,offload=host,recompute=full", 4, LARGE.batch_size)
    with refused(ValueError, "offload", "rtx-4090:bf16", "host", "29", "--host-memory-gb"):
        plan(LARGE, small, replace(LAYOUTS, layout=layout))
    with refused(ValueError, "rtx-4090:bf16", "sharded over 4"):
        plan(LARGE, small, LAYOUTS)


def test_an_accelerator_that_shares_the_memory_of_its_host_offloads_nothing() -> None:
    spark = Cluster(4, 2, 100.0, accelerator="gb10:bf16")
    huge = decoder(8, parameters=4 * 10**9)
    with refused(ValueError, "gb10:bf16", "sharded over 4"):
        plan(huge, spark, LAYOUTS)
    layout = layout_from("sharding=parameters,offload=host", 4, GRAPH.batch_size)
    for options in (replace(LAYOUTS, offload="host"), replace(LAYOUTS, layout=layout)):
        with refused(ValueError, "offload", "host", "none"):
            plan(GRAPH, spark, options)


@pytest.mark.parametrize("tables", [2, 6])
def test_models_without_layers_keep_their_strategies(tables: int) -> None:
    op_graph = embeddings(tables, table_bytes=10**8)
    full = plan(op_graph, H100, PlanningOptions(evaluations=200, optimizer="adamw"))
    both = PlanningOptions(evaluations=200, optimizer="adamw", strategy_space="all")
    made = plan(op_graph, H100, both)
    assert made.layout is None
    assert made.prediction.iteration_s <= full.prediction.iteration_s * 1.01


def test_models_without_layers_have_no_optimizer_by_default() -> None:
    """Tables of 256 GB fit four servers, but not with Adam's two moments in 32 bits."""
    op_graph = embeddings(4, table_bytes=32 * 10**9)
    both = PlanningOptions(evaluations=50, rounds=1, strategy_space="all")
    made = plan(op_graph, replace(H100, accelerator="h100"), both)
    assert made.layout is None
    with refused(ValueError, "accelerator", "h100"):
        plan(op_graph, replace(H100, accelerator="h100"), replace(both, optimizer="adamw"))


@pytest.mark.parametrize("link_gbps", [5.0, 50.0, 500.0])
def test_data_parallelism_takes_as_long_as_a_layout_and_as_a_strategy(link_gbps: float) -> None:
    """Layouts sum the gradients of a block at its end, strategies those of each operator."""
    cluster = replace(H100, link_gbps=link_gbps)
    copies = Layout(data=4, micro_batch=GRAPH.batch_size // 4)
    of_layout = plan(GRAPH, cluster, replace(LAYOUTS, layout=copies))
    strategy = everywhere(GRAPH, 4)
    planning = LayoutPlanning(GRAPH, cluster, LAYOUTS)
    seconds = predict(GRAPH, cluster, of_layout.network, strategy).iteration_s
    seconds += planning.optimizer_s(strategy)
    assert planning.without_overheads_s(of_layout) == pytest.approx(seconds, rel=0.06)


@pytest.mark.parametrize("link_gbps", [5.0, 200.0])
def test_the_faster_of_a_layout_and_a_strategy_is_the_plan(link_gbps: float) -> None:
    cluster = replace(H100, link_gbps=link_gbps)
    both = PlanningOptions(strategy_space="all", evaluations=200, rounds=1)
    made = plan(GRAPH, cluster, both)
    layouts = LayoutPlanning(GRAPH, cluster, both)
    strategies = plan(GRAPH, cluster, replace(both, strategy_space="full", optimizer="adamw"))
    of_layouts = layouts.plan()
    strategy_s = strategies.prediction.iteration_s + layouts.optimizer_s(strategies.strategy)
    if layouts.without_overheads_s(of_layouts) < strategy_s:
        assert made == of_layouts
    else:
        assert made == strategies


def test_the_optimizer_needs_memory_in_every_space() -> None:
    """Six bytes of state for each of bf16 gradients, or two."""
    large = decoder(1, parameters=10**9)  # 4 GB
    alone = Cluster(1, 1, 10.0, accelerator="rtx-4090:bf16")
    for name, fits in (("adamw-bf16", True), ("adamw", False)):
        options = PlanningOptions(evaluations=10, rounds=1, optimizer=name)
        if fits:
            assert plan(large, alone, options).strategy
        else:
            with refused(ValueError, "accelerator", "rtx-4090:bf16"):
                plan(large, alone, options)


def test_progress_counts_the_layouts_that_are_wired() -> None:
    seen: list[PlanProgress] = []
    plan(GRAPH, BOXES, LAYOUTS, on_progress=seen.append)
    assert [now.round for now in seen] == list(range(1, len(seen) + 1))
    assert {now.rounds for now in seen} == {len(seen)}


@pytest.mark.parametrize(
    ("change", "tokens"),
    [
        ({"layout": Layout(), "strategy_space": "full"}, ("layout", "full")),
        ({"optimizer": "adamax"}, ("optimizer", "adamax")),
        ({"software": "fast"}, ("software", "fast")),
    ],
)
def test_options_that_cannot_be_are_refused(
    change: dict[str, object], tokens: tuple[str, ...]
) -> None:
    with refused(ValueError, *tokens):
        replace(LAYOUTS, **change).validate()  # type: ignore[arg-type]
