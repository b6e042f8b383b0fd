"""Values of ranks in the store of torch.distributed, and the check of their authors."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest
import torch.distributed as dist

from torch_topoopt.fabric.driver import FabricError
from torch_topoopt.fabric.secret import SECRET_VARIABLE, write_secret
from torch_topoopt.runtime.job_network import StoreMeeting

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(autouse=True)
def no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(SECRET_VARIABLE, raising=False)


def test_ranks_read_what_the_others_publish() -> None:
    store = dist.HashStore()
    first, second = (StoreMeeting(store, rank) for rank in (0, 1))
    first.publish("plan", "a plan")
    second.publish("plan", "another")
    assert second.collect("plan", [0, 1], time.monotonic() + 20) == {0: "a plan", 1: "another"}


def test_one_that_does_not_come_is_named() -> None:
    with pytest.raises(FabricError, match=r"rank 0: no sign of rank 1, 2 in time \(plan\)"):
        StoreMeeting(dist.HashStore(), 0).collect("plan", [1, 2], time.monotonic() + 0.01)


def test_with_a_secret_only_those_that_know_it_are_believed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = dist.HashStore()
    monkeypatch.setenv(SECRET_VARIABLE, str(write_secret(tmp_path)))
    first, second = (StoreMeeting(store, rank) for rank in (0, 1))
    monkeypatch.delenv(SECRET_VARIABLE)
    stranger = StoreMeeting(store, 2)
    first.publish("plan", "a plan")
    assert second.collect("plan", [0], time.monotonic() + 20) == {0: "a plan"}
    with pytest.raises(FabricError, match="plan/1/0: others have a TOPOOPT_SECRET_FILE"):
        stranger.collect("plan", [0], time.monotonic() + 20)
    store.set("plan/1/0", "a plot")
    with pytest.raises(FabricError, match="plan/1/0: not signed with the secret"):
        second.collect("plan", [0], time.monotonic() + 20)
