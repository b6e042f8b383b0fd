"""Ranks and collectives of a run on its page: who was slow, and nccl-tests' bandwidths."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from report_page import report
from report_runs import make_events, make_plan, write_run

if TYPE_CHECKING:
    from pathlib import Path


def rank_event(rank: int, own_s: float | None) -> dict[str, Any]:
    """Of an iteration of 100 ms."""
    waiting_s = None if own_s is None else 0.1 - own_s
    return {
        "event": "rank", "time_s": 9.0, "rank": rank, "server": rank, "iterations": 50,
        "seconds": 0.1, "under_way_s": 0.04, "waiting_s": waiting_s,
    }  # fmt: skip


REDUCE = {
    "event": "operation", "time_s": 9.0, "name": "all_reduce", "ranks": 4,
    "size_bytes": 1_000_000, "per_iteration": 3.0, "seconds": 0.008,
}  # fmt: skip


def sections_of(folder: Path, *events: dict[str, Any]) -> tuple[dict[str, str], Any]:
    plan = make_plan(5, (1, 2))
    _, page = report(write_run(folder / "run", plan, [*make_events(plan), *events]))
    return page.sections, page.rows


def test_the_slowest_rank_is_named_and_stands_first(tmp_path: Path) -> None:
    ranks = [rank_event(rank, 0.09 if rank == 3 else 0.07) for rank in range(5)]
    sections, rows = sections_of(tmp_path, *ranks)
    assert "rank 3: own work 90 ms of an iteration, the others 70 ms" in sections["ranks"]
    assert rows["ranks"][1][:4] == ["rank 3", "3", "90 ms", "10 ms"]
    assert rows["ranks"][1][5] == "75.0 %"  # of 40 ms under way, 10 were waited for
    assert len(rows["ranks"]) == 1 + 5


def test_of_many_ranks_the_slowest_are_listed(tmp_path: Path) -> None:
    ranks = [rank_event(rank, 0.07 + rank / 1e5) for rank in range(40)]
    sections, rows = sections_of(tmp_path, *ranks)
    assert "the 16 slowest of 40 ranks; the median of all is 70.2 ms" in sections["ranks"]
    assert [row[0] for row in rows["ranks"][1:]] == [f"rank {r}" for r in range(39, 23, -1)]
    assert "No rank is a tenth slower" in sections["ranks"]


def test_where_waiting_is_not_known_nothing_is_said_of_it(tmp_path: Path) -> None:
    sections, rows = sections_of(tmp_path, *(rank_event(rank, None) for rank in range(5)), REDUCE)
    assert "not measured where tensors are on an accelerator" in sections["ranks"]
    assert rows["ranks"][1][2] == "–"
    assert "hidden" not in sections["collectives"].partition("Sizes and")[0]


def test_bandwidths_are_those_of_nccl_tests(tmp_path: Path) -> None:
    """busbw of an all_reduce of n ranks = size / time x 2 (n - 1) / n; of a gather (n - 1) / n."""
    gather = {**REDUCE, "name": "all_gather_into_tensor", "per_iteration": 1.0, "seconds": 0.004}
    ranks = [rank_event(rank, 0.08) for rank in range(4)]
    sections, rows = sections_of(tmp_path, REDUCE, gather, *ranks)
    cells = ["all_reduce", "4", "1 MB", "3.00", "8 ms", "1 Gb/s", "1.5 Gb/s"]
    assert rows["collectives"][1] == cells
    assert rows["collectives"][2][-2:] == ["2 Gb/s", "1.5 Gb/s"]
    # 3 x 1.5 MB and 0.75 MB in 40 ms
    assert "a bus bandwidth of 1.05 Gb/s for all collectives together" in sections["collectives"]
    assert "50.0 % of the time of operations was hidden" in sections["collectives"]
    assert (
        "Bus bandwidth1.05 Gb/sof all collectives; 50 % of their time hidden"
        in sections["headline"]
    )


def test_a_run_that_measured_none_of_it_has_no_such_sections(tmp_path: Path) -> None:
    sections, _ = sections_of(tmp_path)
    assert {"ranks", "collectives"} & sections.keys() == set()
