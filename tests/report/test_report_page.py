"""The report page: it is safe to open anywhere, and shows the figures of its files."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from dataclasses import replace
from typing import TYPE_CHECKING

import matplotlib
import pytest
from report_page import SECTIONS, report
from report_runs import (
    EPOCHS,
    STEPS_PER_EPOCH,
    make_events,
    make_plan,
    train_events,
    vgg_graph,
    write_run,
)

from torch_topoopt.plan import Cluster, Demand, GroupDemand, Placement, Plan
from torch_topoopt.report import summary, write_report
from torch_topoopt.report.html import significant
from torch_topoopt.report.theme import THEME
from torch_topoopt.topology.failures.failure_plans import plan_failures
from torch_topoopt.topology.find_network import find_network

if TYPE_CHECKING:
    from pathlib import Path

NASTY = "</title><script>alert(1)</script>\"' onload=x & $x_{ ]]>"


SHAPES = [
    (1, (), "data-parallel"),
    (3, (1,), "data-parallel"),
    (4, (1,), "data-parallel"),
    (5, (1, 2), "data-parallel"),
    (12, (1, 5), "full"),
    (128, (1, 11, 29, 45), "data-parallel"),
]


@pytest.mark.parametrize(("servers", "strides", "space"), SHAPES)
def test_every_size_of_cluster_gives_a_well_formed_page_with_every_section_in_order(
    tmp_path: Path, servers: int, strides: tuple[int, ...], space: str
) -> None:
    plan = make_plan(servers, strides, space)
    text, page = report(write_run(tmp_path / "run", plan, make_events(plan)))
    assert text.startswith("<!DOCTYPE html>")
    assert list(page.sections) == [n for n in SECTIONS if servers > 1 or n != "glance"]
    ids = page.attributes("id")
    assert len(ids) == len(set(ids))
    assert {name[1:] for name in page.attributes("href")} <= set(ids)
    assert set(page.attributes("aria-controls")) <= set(ids)
    assert {row for row in page.sections if not page.sections[row].strip()} == set()
    assert len(text) < 2_000_000


@pytest.mark.parametrize(("servers", "strides", "space"), [SHAPES[2], SHAPES[4]])
def test_the_page_refers_to_nothing_outside_itself(
    tmp_path: Path, servers: int, strides: tuple[int, ...], space: str
) -> None:
    plan = make_plan(servers, strides, space)
    text, page = report(write_run(tmp_path / "run", plan, make_events(plan)))
    space = "http://www.w3.org/2000/svg"  # a name, which no browser opens
    assert re.findall(r"https?:[^\s\"']*", text) == [space]
    assert "@import" not in text
    assert not {"link", "img", "iframe", "object", "image"} & {tag for tag, _ in page.tags}
    assert "src" not in {name for _, attributes in page.tags for name in attributes}
    assert all(name.startswith("#") for name in page.attributes("href"))
    assert not any(name.startswith("on") for _, attributes in page.tags for name in attributes)
    policy = [a["content"] for _, a in page.tags if "Content-Security-Policy" in a.values()]
    script = text.rpartition("<script>")[2].partition("</script>")[0]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    allowed = f"style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    assert policy == [f"default-src 'none'; {allowed}"]


def test_scripts_and_style_use_colours_that_the_page_defines(run: Path) -> None:
    text, _ = report(run)
    style, body = text.split("</style>", 1)
    own = {"font", "bar"}
    assert re.findall(r"#[0-9a-f]{6}", body) == []
    used = set(re.findall(r"var\(--([a-z0-9-]+)\)", style + body))
    assert used <= set(THEME) | own
    named = set(re.findall(r'colour\("([a-z-]+)"\)', body))
    assert named
    assert named <= set(THEME)


def test_names_from_the_user_are_shown_and_never_become_markup(tmp_path: Path) -> None:
    plan = make_plan(4, (1,), model=NASTY)
    events = make_events(plan)
    events[0]["command"] = ["topoopt", "run", NASTY]
    events[0]["time"] = NASTY
    for event in events:
        if event["event"] == "train":
            event[f"test_accuracy {NASTY}"] = event.pop("test_accuracy")
            event[f"loss {NASTY}"] = 0.5
    events.insert(1, {"event": NASTY})
    folder = write_run(tmp_path / "run", plan, events)
    graph = vgg_graph(NASTY)
    operators = [replace(o, name=o.name + NASTY, kind=NASTY) for o in graph.operators]
    replace(graph, operators=tuple(operators)).save(folder / "opgraph.json")
    strategy = tuple(replace(p, operator=p.operator + NASTY) for p in plan.strategy)
    replace(plan, strategy=strategy).save(folder / "plan.json")
    text, page = report(folder)
    assert text.count("<script") == 2
    assert "<script>alert" not in text
    assert "alert(1)" in text
    assert page.json["runs"][0]["name"] == NASTY
    assert not any(name.startswith("on") for _, attributes in page.tags for name in attributes)
    for name in ("headline", "training", "strategy", "operators"):
        assert NASTY in page.sections[name], name
    assert json.dumps(summary(folder), allow_nan=False)


def test_the_same_files_give_the_same_bytes_in_any_style_of_matplotlib(
    tmp_path: Path,
) -> None:
    plan = make_plan(12, (1, 5), "full")
    folders = [write_run(tmp_path / name, plan, make_events(plan)) for name in ("a", "b")]
    first = write_report(folders[0], plots=tmp_path / "c").read_bytes()
    with matplotlib.rc_context({"font.size": 20, "axes.facecolor": "red", "svg.fonttype": "path"}):
        assert write_report(folders[1], plots=tmp_path / "d").read_bytes() == first
        assert matplotlib.rcParams["font.size"] == 20
    drawn = {path.name: path.read_bytes() for path in (tmp_path / "c").iterdir()}
    again = {path.name: path.read_bytes() for path in (tmp_path / "d").iterdir()}
    assert again == drawn
    names = (
        "topology", "path-length", "heatmap-predicted", "heatmap-measured", "link-load", "search",
        "timeline", "cost",
    )  # fmt: skip
    assert set(drawn) == {f"{name}.{suffix}" for name in names for suffix in ("svg", "png")}


def test_a_report_replaces_the_old_one_and_leaves_no_other_file(run: Path) -> None:
    (run / "report.html").write_text("old")
    path = write_report(str(run))
    assert path == run / "report.html"
    assert path.read_text().endswith("</html>\n")
    assert sorted(p.name for p in run.iterdir()) == [
        "metrics.jsonl", "opgraph.json", "plan.json", "report.html",
    ]  # fmt: skip


# ---- the figures on the page ---------------------------------------------------------------------


def test_the_page_carries_the_exact_figures_of_the_plan(tmp_path: Path) -> None:
    plan = make_plan(12, (1, 5), "full")
    _, page = report(write_run(tmp_path / "run", plan, make_events(plan)))
    shown = set(page.data)
    assert set(map(float, plan.prediction.link_bytes)) <= shown
    prediction = plan.prediction
    assert {prediction.iteration_s, prediction.compute_s, prediction.single_ring_s} <= shown
    for entry in plan.rounds:
        assert {entry.strategy_s, entry.network_s, entry.ideal_switch_s} <= shown
        assert entry.single_ring_s / entry.network_s in shown
    assert float(vgg_graph().parameter_bytes) in shown
    assert {1.1834, 3.0021, 0.2218, 57.4} <= shown
    assert len(page.rows["rounds"]) == 1 + len(plan.rounds)


def test_the_table_of_links_compares_measured_with_predicted_bytes(run: Path) -> None:
    plan = make_plan(4, (1,))
    _, page = report(run)
    header, *rows, total = page.rows["traffic"]
    assert header[0] == "link (server:port)"
    assert len(rows) == len(plan.network.links)
    link = plan.network.links[1]
    first = f"{link.source}:{link.source_port} → {link.target}:{link.target_port}"
    predicted = plan.prediction.link_bytes[1]
    measured = predicted + 40_000_000 / (EPOCHS * STEPS_PER_EPOCH)
    ratio = f"{significant(measured / predicted, 4)}×"
    assert rows[1] == [
        first,
        f"{predicted / 1e6:.1f} MB",
        f"{measured / 1e6:.1f} MB",
        ratio,
        "10.0 %",
    ]
    assert total[1] == f"{sum(plan.prediction.link_bytes) / 1e6:.0f} MB"
    assert "540 iterations" in page.sections["traffic"]


def test_counted_iterations_give_the_rate_of_each_link_and_how_even_steps_were(
    tmp_path: Path,
) -> None:
    plan = make_plan(4, (1,))
    events = make_events(plan)
    for event in events:
        if event["event"] == "link":
            event["iteration_bytes"] = 25_000_000
    times_s = (0.1, 0.1, 0.1, 0.4)
    events[1:1] = [
        {"event": "iterations", "time_s": 1.0, "count": 540, "seconds": 0.1},
        *(
            {"event": "step", "time_s": float(i), "iteration": 10 * i, "step_s": s, "loss": None}
            for i, s in enumerate(times_s)
        ),
    ]
    _, page = report(write_run(tmp_path / "run", plan, events))
    _, *rows, total = page.rows["traffic"]
    assert {row[4] for row in rows} == {"2 Gb/s"}
    shares = {float(row[5].removesuffix(" %")) for row in (*rows, total)}
    assert shares == {round(200 / plan.cluster.link_gbps, 1)}
    text = page.sections["training"]
    assert "median 100 ms, 95th percentile 400 ms, at least 100 ms, at most 400 ms" in text


@pytest.mark.parametrize("why", ["", "fewer than 10 iterations were measured"])
def test_a_time_that_says_little_is_not_held_against_the_prediction(
    tmp_path: Path, why: str
) -> None:
    plan = make_plan(4, (1,))
    events = make_events(plan)
    measured = {"event": "iterations", "time_s": 1.0, "count": 1, "seconds": 0.1}
    events[1:1] = [measured | {"not_compared": why}]
    folder = write_run(tmp_path / "run", plan, events)
    _, page = report(folder)
    assert ("against the prediction" in page.sections["headline"]) is not bool(why)
    assert why in page.sections["headline"]
    found = summary(folder)["iterations"]
    assert found["not_compared"] == why
    assert (found["difference"] is None) is bool(why)


def test_the_headline_names_accuracy_time_to_it_and_exit_status(run: Path) -> None:
    _, page = report(run)
    headline = page.sections["headline"]
    last = train_events()[-1]
    assert f"{last['test_accuracy'] * 100:.2f} %" in headline
    assert "49.2 s" in headline  # accuracy still rises in the last epoch, 12 * 4.1 s
    assert "exit code 0" in headline
    assert "4 × 2" in headline
    assert (
        "topoopt run --servers 4 --degree 2 digits.py --name 'a b; c'" in page.sections["reproduce"]
    )


def test_the_legend_gives_stride_and_share_of_every_ring(tmp_path: Path) -> None:
    plan = make_plan(12, (1, 5))
    _, page = report(write_run(tmp_path / "run", plan, make_events(plan)))
    rows = page.rows["topology"][1:]
    assert [row[-2] for row in rows] == ["+1", "+11 (= −1)", "+5", "+7 (= −5)"]
    assert {row[-1] for row in rows} == {"25.0 %"}
    assert "24 cables (48 directed links)" in page.sections["topology"]


def test_the_wiring_lists_every_cable_once_with_the_rings_of_both_directions(run: Path) -> None:
    _, page = report(run)
    rows = page.rows["wiring"][1:]
    ends = {frozenset([(row[1], row[2]), (row[3], row[4])]) for row in rows}
    assert len(rows) == len(ends) == 4
    assert {row[5] + row[6] for row in rows} == {"01", "10"}


def test_the_failures_say_what_is_left_without_each_cable_and_server(tmp_path: Path) -> None:
    """Four rings share no link, and any one loss costs one of them: a quarter of the bandwidth."""
    plan = make_plan(5, (1, 2))
    failures = plan_failures(plan.cluster, plan.network, plan.demand)
    planned = replace(plan, failures=failures).validate()
    _, page = report(write_run(tmp_path / "planned", planned, make_events(planned)))
    *rows, whole = page.rows["failures"][1:]
    assert [row[0] for row in rows[:2]] == ["0:0 – 1:1", "1:0 – 2:1"]
    assert [row[0] for row in rows[10:]] == [f"server {server}" for server in range(5)]
    assert {row[1:4] for row in map(tuple, rows[:10])} == {("none", "2", "75.0 %")}
    assert whole[0] == "nothing"
    assert whole[3] == "100.0 %"
    text = page.sections["failures"]
    assert "Without any one cable, 75.0 % or more of the bandwidth of AllReduce is left." in text
    _, page = report(write_run(tmp_path / "plain", plan, make_events(plan)))
    assert "does not say how to go on" in page.sections["failures"]


def test_a_cable_that_parts_the_network_is_said_to(tmp_path: Path) -> None:
    cluster, demand = Cluster(2, 1, 10.0), Demand((GroupDemand((0, 1), 10**6),), ())
    network = find_network(cluster, demand)
    plan = Plan.of_network(cluster, network, demand, model="pair")
    plan = replace(plan, failures=plan_failures(cluster, network, demand)).validate()
    _, page = report(write_run(tmp_path / "pair", plan, make_events(plan)))
    assert page.rows["failures"][1][:2] == ["0:0 – 1:0", "disconnects the network"]
    assert "1 of 1 cables disconnect the network." in page.sections["failures"]


def test_a_data_parallel_plan_says_that_no_strategy_was_searched(tmp_path: Path) -> None:
    for space, says in (("data-parallel", True), ("full", False)):
        plan = make_plan(4, (1,), space)
        text, page = report(write_run(tmp_path / space, plan, make_events(plan)))
        assert ("No strategy was searched" in page.sections["search"]) == says
        assert ('data-figure="search"' in text) != says


def test_the_strategy_says_how_operators_are_split(tmp_path: Path) -> None:
    plan = make_plan(4, (1,), "full")
    first, *others = plan.strategy
    split = Placement(first.operator, (2, 0, 3, 1), columns=2, attribute=2)
    whole = tuple(Placement(p.operator, (1,)) for p in others)
    several = replace(plan, strategy=(split, *whole), micro_batches=2, batch_size=64).validate()
    _, page = report(write_run(tmp_path / "run", several, make_events(plan)))
    rows = {row[1]: row[2] for row in page.rows["strategy"][1:]}
    assert rows["columns in 2, attribute in 2"] == first.operator
    assert others[0].operator in rows["whole"]
    assert "2 micro-batches (1F1B)" in page.sections["strategy"]


def test_the_summary_gives_the_figures_of_the_page_as_json(run: Path) -> None:
    plan = make_plan(4, (1,))
    figures = summary(run)
    assert json.loads(json.dumps(figures, allow_nan=False)) == figures
    assert figures["prediction"]["iteration_s"] == plan.prediction.iteration_s
    assert figures["exit_code"] == 0
    assert figures["stages_s"] == {
        "profile": 1.1834, "co-optimise": 3.0021, "wire": 0.2218, "train": 57.4,
    }  # fmt: skip
    assert figures["traffic"]["basis"] == "iteration"
    assert figures["traffic"]["steps"] == EPOCHS * STEPS_PER_EPOCH
    links = figures["traffic"]["links"]
    assert [e["predicted_bytes_per_iteration"] for e in links] == list(plan.prediction.link_bytes)
    assert figures["training"]["accuracy_key"] == "test_accuracy"
    assert figures["notes"] == []
    assert figures["plan_digest"] == plan.digest()
