"""What ranks measured of an iteration, between hosts and at the end of a run."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from torch_topoopt.launcher import console
from torch_topoopt.launcher.run import rank_work
from torch_topoopt.plan.codec import decode
from torch_topoopt.plan.rank_work import OperationTimes, RankWork

if TYPE_CHECKING:
    import pytest

REDUCE = OperationTimes("all_reduce", 4, 1_000_000, 2.0, 0.008)


def works(slow_s: float) -> list[RankWork]:
    """Of iterations of 100 ms of four ranks: all wait for 30 ms, but rank 3 for `slow_s`."""
    return [
        RankWork(rank, rank, 20, 0.1, 0.04 + rank / 1e3, 0.03 if rank < 3 else slow_s, (REDUCE,))
        for rank in range(4)
    ]


def test_hosts_read_what_they_tell_each_other_with_and_without_json() -> None:
    told = rank_work.as_json(works(0.01))
    for read in (told, json.loads(json.dumps(told))):
        assert [decode(RankWork, one) for one in read] == works(0.01)


def test_the_end_of_a_run_names_bandwidth_overlap_and_the_slowest(
    capsys: pytest.CaptureFixture[str],
) -> None:
    rank_work.show(console.Terminal(), works(0.01))
    rank_work.show(console.Terminal(), [])
    first, second = capsys.readouterr().out.splitlines()
    # 2 x 1 MB x 2 x 3 / 4 in 40 ms
    assert first == (
        "communication took 40 ms of each iteration (rank 0, the one that waited least), at a bus "
        "bandwidth of 600 Mb/s; 28% of that time was hidden behind other work (median rank)"
    )
    assert second == ("slowest rank 3: own work 90 ms of an iteration, the others 70 ms (median)")
    rank_work.show(console.Terminal(), works(0.03))
    assert "slowest" not in capsys.readouterr().out
