"""Values of ranks in the store of torch.distributed, and the check of their authors."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING

import pytest
import torch.distributed as dist
from support.refusals import refused

from torch_topoopt.links.errors import FabricError
from torch_topoopt.links.meeting import FIRST_ANSWER, receive
from torch_topoopt.links.secret import SECRET_VARIABLE, write_secret
from torch_topoopt.runtime import job_network
from torch_topoopt.runtime.job_network import Place, StoreMeeting, meet_versions
from torch_topoopt.runtime.versions import BuildInfo

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
    with refused(FabricError, "rank 0", "rank 1", 2):
        StoreMeeting(dist.HashStore(), 0).collect("plan", [1, 2], time.monotonic() + 0.01)


def test_ranks_of_different_builds_have_one_error_that_names_both(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On rank 0, and as its first answer for all others, also for those that fit."""
    store = dist.HashStore()
    builds = iter(["aaaaaaaaaaaa", "aaaaaaaaaaaa", "bbbbbbbbbbbb"])
    monkeypatch.setattr(
        job_network, "build_info", lambda: BuildInfo("2.15.0", sources=next(builds))
    )
    ranks = (4, 5, 6)  # as torch numbers them
    others = [StoreMeeting(store, index) for index in (1, 2)]
    for index, meeting in enumerate(others, 1):
        meet_versions(meeting, Place(index, ranks, 7), time.monotonic())
    with pytest.raises(FabricError) as caught:
        meet_versions(StoreMeeting(store, 0), Place(0, ranks, 7), time.monotonic() + 20)
    error = str(caught.value)
    assert re.fullmatch(
        r"rank 5 has torch_topoopt \S+ \(.*build a{12}\), rank 4 has \S+ \(.*build b{12}\); "
        "install the same on all hosts",
        error,
    )
    for meeting in others:
        with pytest.raises(FabricError) as caught:
            receive(meeting, FIRST_ANSWER, time.monotonic() + 20)
        assert str(caught.value) == error


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
    with refused(FabricError, "plan/1/0", "TOPOOPT_SECRET_FILE"):
        stranger.collect("plan", [0], time.monotonic() + 20)
    store.set("plan/1/0", "a plot")
    with refused(FabricError, "plan/1/0", "not signed"):
        second.collect("plan", [0], time.monotonic() + 20)
