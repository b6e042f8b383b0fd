"""The baselines of all-to-alls on moving circuits, and that ours are never slower."""

from __future__ import annotations

import re

import alltoall
import numpy as np
import pytest

from torch_topoopt.reconfiguration.all_to_all.sweep import strategies


@pytest.mark.parametrize("workload", alltoall.WORKLOADS)
@pytest.mark.parametrize("degree", [1, 2])
def test_ours_is_never_slower_than_a_baseline(workload: str, degree: int) -> None:
    counts = alltoall.chunk_counts(7, workload, 16, seed=2)
    others = alltoall.baselines(counts, degree, seed=2)
    mine = alltoall.ours(counts, degree, workload, seed=2)
    assert set(others) >= {"circulant", "rings", "mixnet", "fast"}
    assert ("kautz" in others) == (degree > 1)
    for delay_s in alltoall.SWEPT_S:
        our_s, _ = alltoall.fastest(mine, delay_s)
        assert our_s <= min(alltoall.fastest([other], delay_s)[0] for other in others.values())


def test_sizes_have_the_mean_that_is_asked_for() -> None:
    for workload in alltoall.WORKLOADS:
        counts = alltoall.chunk_counts(40, workload, 32, seed=0)
        assert not np.diagonal(counts).any()
        assert 8 <= counts.sum() / (40 * 39) <= 8.7
    even = alltoall.chunk_counts(6, "uniform", 32, seed=0)
    assert set(even[~np.eye(6, dtype=bool)]) == {8}


def test_cells_delays_and_ratios_are_printed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for what in ("cells", "delays"):
        arguments = [what, "--servers", "5", "--degree", "1", "--workloads", "random"]
        monkeypatch.setattr("sys.argv", ["alltoall.py", *arguments])
        alltoall.main()
    monkeypatch.setattr("sys.argv", ["alltoall.py", "ratios", "--servers", "8"])
    alltoall.main()
    text = capsys.readouterr().out
    assert re.search(r"mean of 1 cells: [\d.]+% less; worst (0\.\d+|1\.000)", text)
    assert "servers, circuits, sizes: 5 1 random 32 MB; times in ms" in text
    assert re.search(r" 8  1\.100 \(d = +4\)", text)


def test_the_papers_sequences_take_the_slots_of_their_schedules_for_equal_sizes() -> None:
    counts = alltoall.chunk_counts(8, "uniform", 32, seed=0)
    found = dict(alltoall.paper_sequences(counts, 1, seed=0))
    schedules = {s.reconfigurations: s.slots for s in strategies(8, 1, mode="paper")}
    assert found == {d: 8 * slots for d, slots in schedules.items()}
    assert found[2] == 8 * 16, "the paper's example: with two moves of 7 slots each, 30 slots"


@pytest.mark.parametrize("workload", ["random", "zipf"])
def test_carried_chunks_need_no_more_slots_than_the_papers_sequences(workload: str) -> None:
    counts = alltoall.chunk_counts(6, workload, 16, seed=1)
    mine, papers = (
        alltoall.ours(counts, 1, workload, seed=1),
        alltoall.paper_sequences(counts, 1, 1),
    )
    for delay_s in alltoall.SWEPT_S:
        assert alltoall.fastest(mine, delay_s) <= alltoall.fastest(papers, delay_s)


def test_most_is_gained_at_one_of_the_swept_delays() -> None:
    others = {"slow": (1, 100), "direct": (8, 20)}
    gain = alltoall.most_gained(others, [(1, 100), (3, 40)])
    assert gain.delay_s in alltoall.SWEPT_S
    assert gain.topologies == 3
    assert gain.worst == pytest.approx(2, rel=0.02), "40 slots against 20 where moves cost nothing"
    for delay_s in alltoall.SWEPT_S:
        best_s = min(alltoall.fastest([other], delay_s)[0] for other in others.values())
        assert 1 - alltoall.fastest([(3, 40)], delay_s)[0] / best_s <= gain.reduction + 1e-12


def test_theorem_1_holds_for_both_orders_of_shifts() -> None:
    for servers in (8, 16, 33):
        slots = alltoall.shift_slots(servers)
        for name in ("chosen sets", "the paper's order"):
            assert set(slots[name]) == set(range(1, servers))
            assert all(count >= slots["Theorem 1"][d] for d, count in slots[name].items())
        assert slots["chosen sets"][servers - 1] == servers - 1, "every server sends directly"
