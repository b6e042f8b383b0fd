"""`topoopt fabric script` prints the script of a host, its undo, or one line of what is wrong."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from support.fabric.real_hosts import cluster_of
from support.limits import limit_s
from support.refusals import named

from torch_topoopt.launcher import main

if TYPE_CHECKING:
    from pathlib import Path

    from support.plans import RingPlan


@pytest.fixture
def files(ring_plan: RingPlan, tmp_path: Path) -> tuple[str, str]:
    plan = ring_plan(4)
    plan.save(tmp_path / "plan.json")
    cluster_of(plan).save(tmp_path / "cluster.yaml")
    return str(tmp_path / "plan.json"), str(tmp_path / "cluster.yaml")


def _run(*words: str) -> int:
    return main.main(["fabric", "script", *words])


def test_it_prints_the_script_and_its_undo(
    files: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    plan, cluster = files
    assert _run(plan, "--cluster", cluster, "--host", "h1", "--classifier", "u32") == 0
    text = capsys.readouterr().out
    assert text.startswith("#!/bin/sh\n")
    assert "\nclassifier=u32\n" in text
    assert "\n  add_address p0 10.77." in text
    assert _run(plan, "--cluster", cluster, "--host", "h1", "--undo") == 0
    undo = capsys.readouterr().out
    assert undo.startswith("#!/bin/sh\n")
    assert "\n  revert\n" in undo
    assert "add_address p0" not in undo


def test_it_writes_a_script_that_can_be_started(files: tuple[str, str], tmp_path: Path) -> None:
    plan, cluster = files
    script = tmp_path / "h1.sh"
    assert _run(plan, "--cluster", cluster, "--host", "h1", "-o", str(script)) == 0
    done = subprocess.run(
        ["sh", "-n", str(script)], capture_output=True, timeout=limit_s(30), check=False
    )
    assert done.returncode == 0
    assert script.stat().st_mode & 0o111


def test_bad_input_is_one_line(
    files: tuple[str, str],
    ring_plan: RingPlan,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    plan, cluster = files
    assert _run(plan, "--cluster", cluster, "--host", "h9") == 2
    assert named(capsys.readouterr().err, "h9", "h0", "h1", "h2", "h3")
    other = tmp_path / "other.yaml"
    file = cluster_of(ring_plan(4))
    replace(file, cables=file.cables[1:]).save(other)
    assert _run(plan, "--cluster", str(other), "--host", "h0") == 2
    captured = capsys.readouterr()
    assert named(captured.err, "cable", "h0", "h1")
    assert captured.out == ""
