"""This machine as an accelerator: measured once, then read from the cache."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import pytest
from support.refusals import refused

from torch_topoopt.profile import cpu_roofline
from torch_topoopt.search import accelerators

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    accelerators._this_cpu.cache_clear()
    yield
    accelerators._this_cpu.cache_clear()


def ticks(step_s: float) -> itertools.count[float]:
    return itertools.count(0.0, step_s)


def test_figures_are_work_over_time_by_the_clock() -> None:
    clock = ticks(0.25)
    figures = cpu_roofline.measure(lambda: next(clock), limit_s=1e-6)
    assert figures.dense_flops == 2 * 1024**3 / 0.25
    assert figures.convolution_flops == 2 * 4 * 56 * 56 * 64 * 64 * 9 / 0.25
    assert figures.memory_bytes_per_s == 2 * 4 * 2**24 / 0.25
    assert figures.launch_s == 0.25
    assert figures.memory_bytes > 0


def test_a_machine_is_measured_once() -> None:
    clock = ticks(0.5)
    first = cpu_roofline.cpu_roofline(lambda: next(clock), 1e-6)
    again = cpu_roofline.cpu_roofline(lambda: pytest.fail("measured again"), 1e-6)  # type: ignore[arg-type,return-value]
    assert again == first
    assert cpu_roofline.cache_file().exists()


def test_a_file_that_is_no_figures_is_measured_anew() -> None:
    path = cpu_roofline.cache_file()
    path.parent.mkdir(parents=True)
    path.write_text("{}")
    clock = ticks(0.5)
    cpu_roofline.cpu_roofline(lambda: next(clock), 1e-6)
    assert cpu_roofline.CpuRoofline.load(path).launch_s == 0.5


def test_operators_reach_what_the_kernels_did(monkeypatch: pytest.MonkeyPatch) -> None:
    figures = cpu_roofline.CpuRoofline(1, "x", 2, "2", 100e9, 50e9, 10e9, 1e-6, 2**30)
    monkeypatch.setattr(cpu_roofline, "cpu_roofline", lambda: figures)
    device = accelerators.accelerator("cpu")
    for name, flops in (("dense", 100e9), ("attention", 100e9), ("convolution", 50e9)):
        reached = device.peak_flops(name) * device.classes[name].forward.efficiency  # type: ignore[arg-type,index]
        assert reached == pytest.approx(flops)
    with refused(ValueError, "cpu:bf16", "fp32"):
        accelerators.accelerator("cpu:bf16")
