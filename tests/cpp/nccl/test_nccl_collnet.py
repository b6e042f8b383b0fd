"""CollNet of the plugin for NCCL, driven as NCCL's proxy drives it, by one process per rank."""

from __future__ import annotations

from collections.abc import Callable

import pytest

RunRanks = Callable[..., list[str]]

MIB = 1 << 20


@pytest.mark.parametrize(
    "version",
    [8, 12, *(pytest.param(version, marks=pytest.mark.exhaustive) for version in (9, 10, 11))],
)
def test_all_claimed_types_and_reductions_are_right(run_ranks: RunRanks, version: int) -> None:
    printed = run_ranks(version, "collectives")
    assert ["all collectives" in text for text in printed] == [True] * 4


def test_several_ranks_on_each_server(run_ranks: RunRanks) -> None:
    printed = run_ranks(12, "collectives", servers=3, per_server=2)
    assert ["all collectives" in text for text in printed] == [True] * 6


def test_the_algorithm_can_be_forced(run_ranks: RunRanks, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOPOOPT_ALGORITHM", "tree")
    monkeypatch.setenv("TOPOOPT_LOG", "info")
    printed = run_ranks(12, "all_reduce", str(8 * MIB), str(MIB))
    assert f"all_reduce of {MIB} bytes: tree" in printed[0]


def test_a_cable_is_lost_during_an_all_reduce(run_ranks: RunRanks) -> None:
    printed = run_ranks(12, "all_reduce", str(64 * MIB), str(MIB), "cut")
    assert ["seconds" in text for text in printed] == [True] * 4


def test_a_member_that_dies_is_a_remote_error(run_ranks: RunRanks) -> None:
    printed = run_ranks(12, "collectives-gone")
    assert ["remote error" in text for text in printed] == [True, False, True, True]


@pytest.mark.parametrize("version", [8, 9, 10, 11, 12])
def test_wrong_calls_are_refused(run_ranks: RunRanks, version: int) -> None:
    printed = run_ranks(version, "collectives-wrong")
    assert ["all refused" in text for text in printed] == [True] * 4
