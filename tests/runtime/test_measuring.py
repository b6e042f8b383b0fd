"""What messages cost is measured by the first job of a plan, and kept for later ones."""

from __future__ import annotations

import dataclasses
from datetime import timedelta
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import torch.distributed as dist
from support.backend.ranks import make_plan
from support.refusals import named, refused

from torch_topoopt.runtime.job_network import StoreMeeting
from torch_topoopt.runtime.measuring import cost_of, kept_file

if TYPE_CHECKING:
    from pathlib import Path

    from torch_topoopt.plan import CostModel

TIMEOUT = timedelta(seconds=20)


class _Session:
    """Measures another model every time."""

    def __init__(self) -> None:
        self.measured = 0

    def measure_cost(self, group: Any, timeout: timedelta) -> CostModel:
        self.measured += 1
        return dataclasses.replace(group.cost, alpha_s=self.measured * 1e-6)


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Starts a job of one rank that stands for two: the model that it gets."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("TOPOOPT_RUN_DIR", raising=False)
    session = _Session()
    store = dist.HashStore()

    def start_job(servers: int = 2, ranks: tuple[int, ...] = (0, 1)) -> CostModel:
        group = SimpleNamespace(rank=0, servers=list(ranks), cost=None)
        meeting = StoreMeeting(store, 0)
        return cost_of(make_plan(servers, 1), session, group, TIMEOUT, meeting)

    return start_job


def test_jobs_of_one_plan_have_the_model_of_the_first(start: Any) -> None:
    first = start()
    assert first.alpha_s == 1e-6
    assert start() == first
    assert start(ranks=(0, 0, 1, 1)).alpha_s == 2e-6  # other ranks on its servers
    assert start() == first


def test_a_job_that_measures_anew_says_so(
    start: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    start()
    assert caplog.text == ""
    monkeypatch.setenv("TOPOOPT_COST_MODEL", "measure")
    assert start().alpha_s == 2e-6
    assert named(caplog.text, "rounding", "differ")
    monkeypatch.setenv("TOPOOPT_COST_MODEL", "kept")
    assert start().alpha_s == 2e-6


def test_a_model_that_cannot_be_kept_or_read_is_a_warning(
    start: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    start()
    path = kept_file(make_plan(2, 1), [0, 1])
    path.write_text('{"cost_model": {"alpha_s": -1}}')
    assert start().alpha_s == 2e-6
    assert named(caplog.text, path, "kept")
    path.unlink()
    path.parent.rmdir()
    path.parent.write_text("a file, where a folder would be")
    assert start().alpha_s == 3e-6
    assert "cannot be kept" in caplog.text


def test_an_unknown_way_is_refused(start: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOPOOPT_COST_MODEL", "guess")
    with refused(ValueError, "TOPOOPT_COST_MODEL", "guess"):
        start()
