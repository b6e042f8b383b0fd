"""What a running job says of its training and its links, read as it grows and grouped."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torch_topoopt.plan import Link
from torch_topoopt.supervision.link_groups import FEW, LinkNow, group_links
from torch_topoopt.supervision.statuses import LinkRate
from torch_topoopt.supervision.training_log import TrainingLog

if TYPE_CHECKING:
    from pathlib import Path


def append(path: Path, *events: dict[str, object] | str) -> None:
    with path.open("a") as file:
        for event in events:
            file.write(event if isinstance(event, str) else json.dumps(event) + "\n")


def step(iteration: int, loss: float | None) -> dict[str, object]:
    return {"event": "step", "time_s": 1.0, "iteration": iteration, "step_s": 0.1, "loss": loss}


def test_lines_are_read_once_and_whole(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    log = TrainingLog(path)
    log.read()
    assert not log.step_s
    line = json.dumps(step(20, 1.0)) + "\n"
    append(path, step(10, 2.0), line[:15])
    log.read()
    assert [point.iteration for point in log.step_s] == [10]
    append(path, line[15:], "no JSON\n", "[1]\n", {"event": "step", "time_s": None})
    log.read()
    log.read()
    assert [(p.iteration, p.value) for p in log.losses] == [(10, 2.0), (20, 1.0)]


def test_a_loss_that_the_script_logs_goes_before_the_one_that_is_seen(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    log = TrainingLog(path)
    append(path, step(10, 2.0), {"event": "train", "time_s": 2.0, "loss": 0.5}, step(20, 1.9))
    append(path, {"event": "train", "time_s": 2.0, "accuracy": 0.5})
    log.read()
    assert [(p.iteration, p.value) for p in log.losses] == [(10, 0.5)]


def test_paths_of_links_are_those_of_the_newest_event(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    log = TrainingLog(path)
    route = {"event": "route", "time_s": 1.0, "what": "path", "ends": [0, 1, 2, 3]}
    append(path, {**route, "path": ["a", "s", "b"]}, {**route, "ends": [0, 1], "path": []})
    append(path, {**route, "path": "abc"}, {**route, "path": [7]}, {**route, "what": "moved"})
    log.read()
    assert log.paths == {Link(0, 1, 2, 3): ("a", "s", "b")}
    append(path, {**route, "path": []})
    log.read()
    assert log.paths == {Link(0, 1, 2, 3): ()}


def now(source: int, target: int, port: int = 0, **changes: float) -> LinkNow:
    planned = changes.pop("planned", 1.0)
    values = {"up": True, "gbps": 0.9, "busy": 1.0, **changes}
    rate = LinkRate(
        Link(source, port, target, port),
        sent_bytes=0,
        relayed_bytes=0,
        relay_peak_bytes=0,
        **values,
    )
    return LinkNow(rate, source, planned)


def circulant(servers: int, strides: tuple[int, ...]) -> list[LinkNow]:
    return [now(s, (s + p) % servers, i) for s in range(servers) for i, p in enumerate(strides)]


def test_links_of_a_stride_are_a_group_and_bad_ones_come_first() -> None:
    links = circulant(128, (1, 127, 11, 117))
    links[7] = now(1, 12, 2, gbps=0.1)
    links[9] = now(2, 1, 1, up=False, gbps=0.0)
    groups = group_links(links, 128)
    assert [g.state for g in groups] == ["down", "degraded", "up", "up", "up", "up"]
    assert groups[0].name == "2.1 -> 1.1"
    assert [g.name for g in groups[2:]] == [
        "+1: 128 links", "+11: 128 links", "+117: 127 links", "+127: 127 links",
    ]  # fmt: skip


def test_networks_of_many_strides_are_grouped_by_rate() -> None:
    links = [now(s, (s * s + 1) % 97, planned=1.0 + s % 2, gbps=1.5) for s in range(97)]
    assert [group.name for group in group_links(links, 97)] == [
        "49 links of 1 Gb/s",
        "48 links of 2 Gb/s",
    ]


@given(
    st.lists(
        st.tuples(st.integers(0, 40), st.integers(0, 40), st.booleans(), st.floats(0, 1)),
        max_size=300,
    )
)
def test_every_link_is_in_one_group_and_groups_are_few(
    ends: list[tuple[int, int, bool, float]],
) -> None:
    links = [now(a, b, up=up, gbps=gbps) for a, b, up, gbps in ends]
    groups = group_links(links, 41)
    grouped = [id(link) for group in groups for link in group.links]
    assert sorted(grouped) == sorted(map(id, links))
    assert len(groups) <= 2 * FEW + 2
    assert all(link.state == group.state for group in groups for link in group.links)
    for group in groups:
        assert group.least_gbps <= group.median_gbps <= group.most_gbps


def test_the_part_of_the_planned_rate_is_known_only_with_a_plan() -> None:
    (group,) = group_links([now(0, 1, gbps=0.5)], 2)
    assert group.used == pytest.approx(0.5)
    (group,) = group_links([LinkNow(now(0, 1).rate, 0, None)], 2)
    assert group.used is None
