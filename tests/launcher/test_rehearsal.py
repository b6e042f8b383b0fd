"""docs/guides/rehearsal.md as it stands: from cables to a trained model on namespaces, as root."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.commands import shared_server
from support.fabric.netns_fixtures import a_name, own_state, require_namespaces
from support.limits import limit_s

from torch_topoopt.fabric.cluster_file.load import load_cluster
from torch_topoopt.fabric.netns import kernel as netns_kernel
from torch_topoopt.fabric.netns import state as netns_state
from torch_topoopt.plan import Plan

PAGE = Path(__file__).parents[2] / "docs" / "guides" / "rehearsal.md"
LIMIT_S = limit_s(400.0)  # about 40 s on two idle cores


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE.read_text(), re.DOTALL)


@pytest.mark.slow
def test_the_commands_of_the_page_end_in_a_trained_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    require_namespaces()
    for program in ("ip", "awk"):
        if shutil.which(program) is None:
            pytest.skip(f"the page needs the program {program}")
    own_state(tmp_path, monkeypatch)
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=os.pathsep)
    command = tmp_path / "bin" / "topoopt"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec {shlex.join(shared_server().command("topoopt"))} "$@"\n')
    command.chmod(0o755)
    monkeypatch.setenv("PATH", str(command.parent), prepend=os.pathsep)
    name = a_name()
    (script,) = blocks("python")
    (tmp_path / "train.py").write_text(script)
    commands = "set -e -o pipefail\n" + "".join(blocks("sh"))
    assert commands.count("rehearsal") == 4
    try:
        done = subprocess.run(
            ["bash", "-c", commands.replace("rehearsal", name)],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
        assert done.returncode == 0, done.stderr + done.stdout
    finally:
        left = netns_kernel.of_fabric(name)
        netns_state.take_down(name)
    assert left == [], "the last command removes the fabric"
    cluster = load_cluster(tmp_path / "lab.yaml")
    joined = {frozenset(end.partition(":")[0] for end in cable) for cable in cluster.cables}
    assert joined == {frozenset(pair) for pair in (("h0", "h1"), ("h1", "h2"), ("h0", "h2"))}
    assert "limited by the cluster file's bandwidth" in done.stdout
    assert re.search(r"^loss \d", done.stdout, re.MULTILINE), done.stdout
    assert (tmp_path / "run0" / "report.html").is_file()
    plans = {Plan.load(tmp_path / f"run{host}" / "plan.json") for host in range(3)}
    assert len(plans) == 1
    metrics = (tmp_path / "run0" / "metrics.jsonl").read_text().splitlines()
    links = [event for event in map(json.loads, metrics) if event["event"] == "link"]
    gradient_bytes = 4 * (784 * 64 + 64 + 64 * 10 + 10)
    assert len(links) == 6, f"three cables, both directions\n{done.stderr}{done.stdout}"
    least = 5 * 2 * 2 / 3 * gradient_bytes / 2  # five steps, half of what a server sends
    assert all(link["sent_bytes"] >= least * 0.99 for link in links)
