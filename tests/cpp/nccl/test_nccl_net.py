"""The network plugin for NCCL, driven as NCCL's proxy drives it, by one process per rank."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from torch_topoopt.runtime.versions import build_info

RunRanks = Callable[..., list[str]]

_BUILD = build_info()
needs_tls = pytest.mark.skipif(_BUILD is None or not _BUILD.openssl, reason="this build has no TLS")


@pytest.mark.parametrize(
    "version",
    [8, 12, *(pytest.param(version, marks=pytest.mark.exhaustive) for version in (9, 10, 11))],
)
def test_all_pairs_of_a_ring_exchange_messages(run_ranks: RunRanks, version: int) -> None:
    printed = run_ranks(version, "pairs")
    assert ["all pairs" in text for text in printed] == [True] * 4


def test_ring_and_tree_of_a_ring_of_four(run_ranks: RunRanks) -> None:
    printed = run_ranks(11, "ring", str(8 << 20))
    assert ["seconds" in text for text in printed] == [True] * 4


def test_several_ranks_on_each_server(run_ranks: RunRanks) -> None:
    printed = run_ranks(11, "pairs", servers=3, per_server=2)
    assert ["all pairs" in text for text in printed] == [True] * 6


def test_sixteen_ranks_connect_with_all(run_ranks: RunRanks) -> None:
    printed = run_ranks(11, "mesh", "1000", servers=4, per_server=4)
    assert ["all pairs" in text for text in printed] == [True] * 16


@needs_tls
def test_encrypted_links(run_ranks: RunRanks) -> None:
    printed = run_ranks(11, "ring", str(8 << 20), encrypt=True)
    assert ["seconds" in text for text in printed] == [True] * 4


@pytest.mark.parametrize("encrypt", [False, pytest.param(True, marks=needs_tls)])
def test_a_cable_is_lost_during_an_all_reduce(run_ranks: RunRanks, encrypt: bool) -> None:
    printed = run_ranks(11, "ring", str(64 << 20), "cut", encrypt=encrypt)
    assert ["seconds" in text for text in printed] == [True] * 4


def test_a_rank_that_dies_is_a_remote_error(run_ranks: RunRanks) -> None:
    assert "remote error" in run_ranks(11, "gone")[0]


@pytest.mark.parametrize("version", [8, 9, 10, 11, 12])
def test_wrong_calls_are_refused(run_ranks: RunRanks, version: int) -> None:
    printed = run_ranks(version, "wrong")
    assert ["all refused" in text for text in printed] == [True] * 4
