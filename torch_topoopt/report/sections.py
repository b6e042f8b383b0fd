"""The sections of the page on the run as a whole, and their order."""

from __future__ import annotations

import shlex
import signal
import statistics
from typing import TYPE_CHECKING

from markupsafe import Markup

from torch_topoopt.plan.rank_work import hidden_part
from torch_topoopt.plan.units import format_gbps
from torch_topoopt.report.analysis.iteration import operators_text
from torch_topoopt.report.bounds import mean_bus_gbps
from torch_topoopt.report.html import (
    MISSING,
    breakable,
    count,
    element,
    folded,
    paragraph,
    percent,
    plot,
    ratio,
    seconds,
    section,
    significant,
    size,
    table,
)
from torch_topoopt.report.results import (
    find_accuracy,
    key_words,
    server_list,
    training_curves,
)
from torch_topoopt.report.run_folder import STAGES
from torch_topoopt.report.summary import divide

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch_topoopt.op_graph import Operator, OpGraph
    from torch_topoopt.plan import Plan
    from torch_topoopt.planner.layout_figures import LayoutFigures
    from torch_topoopt.report.run_folder import FailedRank, Metrics, Run

_TOP_OPERATORS = 10
_MOST_PLACES = 12  # sets of servers that are listed one by one
_STAGE_WORK = {
    "profile": "the model becomes an OpGraph",
    "co-optimise": "strategy search and TopologyFinder",
    "wire": "links opened and verified from both ends",
    "train": "the training script on all ranks",
}
_STEPS_DRAWN = 8  # seconds: fewer make no distribution
_OTHERS_NOTICED = 0.1  # processors
_SAME = 0.0005  # smaller differences of times are not shown


# ---- headline ------------------------------------------------------------------------------------


def _tile(name: str, value: str, note: str, class_: str = "") -> Markup:
    return element(
        "div",
        element("div", name, class_="name"),
        element("div", value, class_=f"value {class_}".strip()),
        element("div", note, class_="note"),
        class_="tile",
    )


def _measured_tiles(run: Run) -> list[Markup]:
    iterations = run.metrics.iterations if run.metrics else None
    if iterations is None:
        return []
    predicted_s = run.plan.prediction.iteration_s if run.compares_time else 0.0
    apart = divide(iterations.seconds - predicted_s, predicted_s)
    note = "no time was predicted of this script"
    if run.why_time_not_compared:
        note = f"not compared with the prediction: {run.why_time_not_compared}"
    elif apart is not None:
        note = f"{apart * 100:+.1f} % against the prediction"
    note += f"; {iterations.count} measured"
    others = iterations.other_processors
    if others is not None and others >= _OTHERS_NOTICED:
        note += f"; other programs used {others:.1f} CPUs"
    return [_tile("Measured iteration", seconds(iterations.seconds), note)]


def _prediction_tile(plan: Plan) -> Markup:
    if not plan.predicts_time:
        return _tile("Predicted iteration", MISSING, _no_time(plan))
    speedup = divide(plan.prediction.single_ring_s, plan.prediction.iteration_s)
    note = Markup("") if speedup is None else Markup(f"{ratio(speedup)} the speed of a single ring")
    return _tile("Predicted iteration", seconds(plan.prediction.iteration_s), note)


def _no_time(plan: Plan) -> str:
    """Why no time is predicted, in words."""
    if plan.predicts_bytes:
        return "only bytes: no model was profiled, and no steps of the script were measured"
    return "no model was profiled, and what the script communicates was not known"


def _accuracy_tiles(run: Run) -> list[Markup]:
    accuracy = find_accuracy(run.metrics.train) if run.metrics else None
    if accuracy is None:
        return _loss_tiles(run)
    name = "Test accuracy" if "test" in key_words(accuracy.key) else "Accuracy"
    goal = "target" if accuracy.goal_is_target else "best seen"
    reached = Markup(f"to {percent(accuracy.goal, 2)} ({goal})")
    if accuracy.time_to_s is None:
        not_reached = accuracy.best < accuracy.goal
        reached = Markup(f"{reached}: {'not reached' if not_reached else 'no time was logged'}")
    return [
        _tile(name, percent(accuracy.final, 2), f"last value of {accuracy.key}"),
        _tile("Time to accuracy", seconds(accuracy.time_to_s), reached),
    ]


def _loss_tiles(run: Run) -> list[Markup]:
    """The last loss, if known, of a script that logs no accuracy."""
    assert run.metrics is not None
    curves = [series for series in training_curves(run.metrics.train).losses if series.points]
    seen = [step.loss for step in run.metrics.steps if step.loss is not None]
    if curves:
        losses = [value for _, value in curves[0].points]
        return [_tile("Loss", significant(losses[-1]), f"last value of {curves[0].key}, the first "
                      f"{significant(losses[0])}")]  # fmt: skip
    if seen:
        note = f"of the last second on rank 0, the first {significant(seen[0])}"
        return [_tile("Loss", significant(seen[-1]), note)]
    return [_tile("Accuracy", MISSING, "the script logged no accuracy and no loss")]


def _collectives_tile(run: Run) -> list[Markup]:
    metrics = run.metrics
    rate = mean_bus_gbps(metrics.ranks, metrics.operations) if metrics else None
    if metrics is None or rate is None:
        return []
    hidden = hidden_part(metrics.ranks)
    note = Markup("of all collectives of an iteration")
    if hidden is not None:
        note = Markup(f"of all collectives; {percent(hidden, 0)} of their time hidden")
    return [_tile("Bus bandwidth", format_gbps(float(f"{rate:.3g}")), note)]


def _exit_tile(run: Run) -> Markup:
    code = run.metrics.exit_code if run.metrics else None
    if code is None:
        return _tile("Run", "not finished", "no exit code recorded", "bad")
    if code == 0:
        return _tile("Run", "✓ finished", "exit code 0", "good")
    return _tile("Run", "✗ failed", f"exit code {code}", "bad")


def _run_tiles(run: Run) -> list[Markup]:
    tiles = [*_measured_tiles(run), *_accuracy_tiles(run), *_collectives_tile(run)]
    return [*tiles, _exit_tile(run)]


def _plan_tiles(plan: Plan) -> list[Markup]:
    if not plan.predicts_time:
        return []
    prediction = plan.prediction
    share = divide(prediction.compute_s, prediction.iteration_s)
    against = divide(prediction.iteration_s, prediction.ideal_switch_s)
    return [
        _tile("Compute", seconds(prediction.compute_s), Markup(f"{percent(share)} of it")),
        _tile(
            "On an ideal switch",
            seconds(prediction.ideal_switch_s),
            Markup(f"the plan takes {ratio(against)} as long"),
        ),
    ]


def headline(run: Run) -> Markup:
    plan, cluster = run.plan, run.plan.cluster
    start = run.metrics.start if run.metrics else None
    parts = [f"batch of {plan.batch_size} samples"] if plan.strategy else []
    parts.append(f"seed {plan.seed}")
    if run.metrics is None:
        parts.append("a plan: predictions only")
    if start is not None:
        parts.append(f"started {start.time}")
    tiles = [
        _tile(
            "Cluster",
            f"{cluster.servers} × {cluster.degree}",
            f"servers × degree; {cluster.ports} ports of {format_gbps(cluster.link_gbps)}, "
            f"{cluster.accelerators_per_server} × {cluster.accelerator} per server",
        ),
        _prediction_tile(plan),
        *(_run_tiles(run) if run.metrics else _plan_tiles(plan)),
    ]
    notes = Markup("")
    if run.notes:
        items = element("ul", *(element("li", note) for note in run.notes))
        notes = element("div", element("strong", "Please note"), items, class_="notes", role="note")
    return element(
        "header",
        element("h1", plan.model or "Rings and routes"),
        element("p", " · ".join(parts), class_="sub"),
        element("div", *tiles, class_="tiles"),
        notes,
        id="headline",
    )


# ---- stages, rounds, search, training ------------------------------------------------------------


def stages_section(run: Run) -> Markup:
    stages = run.metrics.stages if run.metrics else {}
    total = sum(stages.values())
    work = dict(_STAGE_WORK)
    if not run.plan.strategy:
        work["profile"] = "the first iterations of the script are traced"
        work["co-optimise"] = "TopologyFinder"
    iterations = run.metrics.iterations if run.metrics else None
    if iterations is not None and iterations.start_up_s is not None:
        start_up = seconds(iterations.start_up_s)
        work["train"] = Markup(
            f"{work['train']}; the first iteration took {start_up}, start-up included"
        )
    rows = [
        (
            name.capitalize(),
            work[name],
            seconds(stages.get(name)) if name in stages else "not recorded",
            percent(divide(stages.get(name), total)),
        )
        for name in STAGES
    ]
    summed = ("All", "", seconds(total if stages else None), percent(1.0 if total else None))
    columns = ("stage", "what happens", "time", "share")
    body = table("Time of each stage", columns, rows, numeric_from=2, total=summed)
    return section("stages", "Stages", body)


def resized_sections(run: Run) -> Markup:
    """Restarts and growth, of a run that had them."""
    return _restarts_section(run) + _growths_section(run)


def _restarts_section(run: Run) -> Markup:
    if not run.metrics or not run.metrics.restarts:
        return Markup("")
    rows = [
        (
            f"{restart.number} of {restart.most}",
            seconds(restart.time_s),
            "; ".join(_how_failed(failed) for failed in restart.failed),
            ", ".join(map(str, restart.lost_servers)) or "none",
            str(restart.servers),
        )
        for restart in run.metrics.restarts
    ]
    columns = ("restart", "after", "what failed", "servers gone", "servers then")
    text = paragraph(
        "Servers that are gone have their numbers of before that restart. Bytes and times of an "
        "iteration are those after the last restart."
    )
    return section("restarts", "Restarts", text, table("Restarts of the job", columns, rows))


def _growths_section(run: Run) -> Markup:
    if not run.metrics or not run.metrics.growths:
        return Markup("")
    rows = [
        (
            seconds(growth.time_s),
            ", ".join(map(str, growth.came_servers)),
            str(growth.servers),
            growth.plan_digest,
            seconds(growth.stopped_s),
            growth.error or "taken in",
        )
        for growth in run.metrics.growths
    ]
    columns = ("after", "servers that came", "servers then", "plan", "ranks stopped for", "result")
    text = paragraph("Servers that came have their numbers among all servers of --nnodes MIN:MAX.")
    return section("growths", "Growth", text, table("Servers that came", columns, rows))


def _how_failed(failed: FailedRank) -> str:
    how = f"exit code {failed.exit_code}"
    if failed.exit_code < 0:
        how = signal.Signals(-failed.exit_code).name
    text = f"rank {failed.rank}: {how}"
    return f"{text}, {failed.message.strip().splitlines()[-1]}" if failed.message.strip() else text


def rounds_section(plan: Plan) -> Markup:
    prediction = plan.prediction
    if not plan.predicts_time:
        text = paragraph(f"Not predicted: {_no_time(plan)}.")
        return section("rounds", "Predicted iteration time", text)
    text = paragraph(
        "This plan: ", seconds(prediction.iteration_s), " per iteration; compute alone takes ",
        seconds(prediction.compute_s), ". The same strategy takes ",
        seconds(prediction.single_ring_s), " on a single ring (the plan is ",
        ratio(divide(prediction.single_ring_s, prediction.iteration_s)), " as fast) and ",
        seconds(prediction.ideal_switch_s), " on an ideal switch (the plan takes ",
        ratio(divide(prediction.iteration_s, prediction.ideal_switch_s)), " as long).",
    )  # fmt: skip
    several = len({entry.micro_batches for entry in plan.rounds}) > 1
    rows = [
        (
            f"{number} ({entry.micro_batches} micro-batches)" if several else str(number),
            seconds(entry.strategy_s),
            seconds(entry.network_s),
            seconds(entry.single_ring_s),
            seconds(entry.ideal_switch_s),
            ratio(divide(entry.single_ring_s, entry.network_s)),
            ratio(divide(entry.network_s, entry.ideal_switch_s)),
            seconds(min(entry.strategy_s, entry.network_s)) if entry.accepted else "no",
        )
        for number, entry in enumerate(plan.rounds, 1)
    ]
    columns = (
        "round", "after strategy search", "after TopologyFinder", "single ring", "ideal switch",
        "speed-up over single ring", "time over ideal switch", "kept",
    )  # fmt: skip
    caption = "Predicted time of one iteration after each round of the alternating optimisation"
    body = table(caption, columns, rows) if rows else paragraph("The plan records no rounds.")
    return section("rounds", "Predicted iteration time", text, body)


def search_section(plan: Plan) -> Markup:
    content: list[str] = []
    if not plan.strategy:
        text = "No strategy was searched: the script keeps its own. Only the network was planned."
        return section("search", "Strategy search", paragraph(text))
    if plan.layout is not None:
        text = "All layouts were priced in closed form, and the fastest on networks of their own."
        return section("search", "Strategy search", paragraph(text))
    if plan.strategy_space == "data-parallel":
        content.append(
            paragraph(
                "No strategy was searched: the strategy space was data-parallel, in which every "
                "operator runs on all servers. Only the network was optimised."
            )
        )
    elif not plan.search:
        content.append(paragraph("The plan records no samples of the search."))
    if plan.strategy_space != "data-parallel" and plan.search:
        first, last = plan.search[0], plan.search[-1]
        evaluated = f"in {last.evaluations:,} evaluations of the cost"
        if last.best_s >= first.best_s:
            text = Markup(
                f"Nothing better than what the search began with, {seconds(first.best_s)}, was "
                f"found {evaluated}."
            )
        else:
            text = Markup(
                f"Predicted iteration time: the best went from {seconds(first.best_s)} to "
                f"{seconds(last.best_s)} {evaluated}."
            )
        if plan.predicts_time and plan.prediction.iteration_s < last.best_s * (1 - _SAME):
            text = Markup(
                f"{text} The last descent, which is no part of the search, brought it to "
                f"{seconds(plan.prediction.iteration_s)}."
            )
        flat = all(sample.current_s == first.current_s for sample in plan.search)
        content.append(paragraph(text) if flat else plot("search", text))
    return section("search", "Strategy search", *content)


def training_section(run: Run) -> Markup:
    title = "Accuracy and loss"
    assert run.metrics is not None
    curves = training_curves(run.metrics.train)
    shown = [*curves.accuracies, *curves.losses]
    steps = _steps_text(run)
    if not shown:
        return section("training", title, paragraph(_not_logged(run.metrics)), steps)
    accuracy = find_accuracy(run.metrics.train)
    caption = ["As logged by the training script."]
    caption += (
        ["The dashed line is the target accuracy."] if accuracy and accuracy.goal_is_target else []
    )
    caption += [
        f"{series.key} was not a finite number {series.not_finite} times."
        for series in shown
        if series.not_finite
    ]
    named = paragraph("Curves: ", ", ".join(series.key for series in shown), class_="note")
    return section("training", title, named, plot("training", " ".join(caption)), steps)


def _not_logged(metrics: Metrics) -> str:
    seen = [step.loss for step in metrics.steps if step.loss is not None]
    if not seen:
        return "The script logged no accuracy and no loss."
    return (
        "The script logged no accuracy and no loss. The loss of which rank 0 called backward() "
        "went "
        f"from {significant(seen[0])} to {significant(seen[-1])}; torch_topoopt.log(loss=...) "
        "draws "
        "its curve here."
    )


def measured_section(run: Run) -> Markup:
    """The measured times of a run whose plan predicts none."""
    iterations = run.metrics.iterations if run.metrics else None
    if iterations is None or run.plan.predicts_time:
        return Markup("")
    text = Markup(
        f"An iteration took {seconds(iterations.seconds)}, the mean of {iterations.count}. No time "
        f"was predicted: {_no_time(run.plan)}."
    )
    link = element("a", "The step times of rank 0", href="#training")
    return section("measured", "Measured iteration", paragraph(text), paragraph(link, "."))


def _steps_text(run: Run) -> Markup:
    """The spread of the steps' times; empty if too few were recorded."""
    assert run.metrics is not None
    times = sorted(step.step_s for step in run.metrics.steps)
    if len(times) < 3:
        return Markup()
    slow = times[round(0.95 * (len(times) - 1))]
    text = Markup(
        f"Step time on rank 0, a mean for each of {len(times)} seconds: median "
        f"{seconds(statistics.median(times))}, 95th percentile {seconds(slow)}, at least "
        f"{seconds(times[0])}, at most {seconds(times[-1])}."
    )
    if len(times) < _STEPS_DRAWN:
        return paragraph(text)
    title = element("h3", "Cumulative distribution of step time")
    return Markup("").join((paragraph(text), title, plot("steps")))


# ---- strategy and operators ----------------------------------------------------------------------


def _layout_tables(figures: LayoutFigures) -> tuple[Markup, Markup]:
    """The parts of an iteration, and of the memory of an accelerator."""
    times, memory = figures.times._asdict(), figures.memory._asdict()
    return (
        table(
            "Time of the slowest stage",
            ("part", "time"),
            [(name.removesuffix("_s"), seconds(value)) for name, value in times.items()],
        ),
        table(
            "Memory of the fullest accelerator",
            ("part", "size"),
            [(name, size(value)) for name, value in memory.items()],
            total=("total", size(figures.memory.total)),
        ),
    )


def strategy_section(run: Run, figures: LayoutFigures | None = None) -> Markup:
    plan = run.plan
    if not plan.strategy:
        return section(
            "strategy", "Strategy", paragraph("The script's own: the plan places no operators.")
        )
    if plan.layout is not None:
        text = f"A layout, which the script executes itself: {plan.layout}."
        shown = () if figures is None else _layout_tables(figures)
        return section("strategy", "Strategy", paragraph(text), *shown)
    by_place: dict[tuple[tuple[int, ...], str], list[str]] = {}
    sets = {(tuple(sorted(p.servers)), str(p.degrees)) for p in plan.strategy}
    for placement in plan.strategy:
        servers: tuple[int, ...] = tuple(sorted(placement.servers))
        if len(sets) > _MOST_PLACES:  # group equal splits, whatever their servers
            servers = tuple(range(-len(servers), 0))
        by_place.setdefault((servers, str(placement.degrees)), []).append(placement.operator)
    operators = {o.name: o for o in run.graph.operators} if run.graph else {}
    rows = []
    for place, names in sorted(by_place.items(), key=lambda item: (-len(item[0][0]), item[0])):
        servers, split = place
        known = [operators[name] for name in names if name in operators]
        text = ", ".join(names)
        rows.append(
            (
                server_list(servers) if servers[0] >= 0 else f"{len(servers)} each",
                split,
                folded(f"{names[0]} … {names[-1]}", paragraph(text), is_open=False)
                if len(names) > 8
                else text,
                str(len(names)),
                count(sum(_flops(o) for o in known)) if run.graph else MISSING,
                size(sum(o.parameter_bytes for o in known)) if run.graph else MISSING,
            )
        )
    columns = ("servers", "split", "operators", "number", "FLOPs", "parameters")
    caption = (
        "Which servers share which operators, and how; FLOPs of one iteration, forward and "
        "backward, over all servers"
    )
    if plan.micro_batches > 1:
        caption += f". The batch is split into {plan.micro_batches} micro-batches (1F1B)"
    return section("strategy", "Strategy", table(caption, columns, rows, numeric_from=3))


def _flops(operator: Operator) -> int:
    return operator.forward_flops + operator.backward_flops


def _top_table(
    graph: OpGraph, what: str, value: Callable[[Operator], int], show: Callable[[int], Markup]
) -> Markup:
    total = sum(value(operator) for operator in graph.operators)
    alike: dict[tuple[str, int], list[str]] = {}
    for o in graph.operators:
        if value(o):
            alike.setdefault((o.kind, value(o)), []).append(o.name)
    ranked = sorted(alike.items(), key=lambda entry: -entry[0][1] * len(entry[1]))
    rows = [
        (
            breakable(names[0])
            if len(names) == 1
            else breakable(f"{operators_text(tuple(names))} ({len(names)} alike)"),
            breakable(kind),
            show(each * len(names)),
            percent(divide(each * len(names), total)),
        )
        for (kind, each), names in ranked[:_TOP_OPERATORS]
    ]
    summed = ("all operators", "", show(total), percent(1.0 if total else None))
    columns = ("operator", "kind", what, "share")
    return table(f"Operators by {what}", columns, rows, numeric_from=2, total=summed)


def operators_section(run: Run) -> Markup:
    title = "Largest operators"
    if run.graph is None and not run.plan.strategy:
        return section("operators", title, paragraph("No model was profiled."))
    if run.graph is None:
        return section("operators", title, paragraph("Not recorded: there is no OpGraph."))
    text = paragraph(
        f"{len(run.graph.operators)} operators; figures for the whole batch of "
        f"{run.graph.batch_size} samples, FLOPs of forward and backward pass together."
    )
    flops = _top_table(run.graph, "FLOPs", _flops, count)
    parameters = _top_table(run.graph, "parameter bytes", lambda o: o.parameter_bytes, size)
    return section("operators", title, text, element("div", flops, parameters, class_="columns"))


def reproduce_section(run: Run) -> Markup:
    start = run.metrics.start if run.metrics else None
    if start is None:
        body = paragraph("The command was not recorded.")
    else:
        body = element("pre", element("code", shlex.join(start.command)))
    return section("reproduce", "Reproduce", body)
