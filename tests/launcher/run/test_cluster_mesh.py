"""`topoopt cluster` on a HammingMesh of 4x4 emulated servers: a job that runs on its boards."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from support.launcher import Launcher
from support.refusals import named

if TYPE_CHECKING:
    from pathlib import Path

SCRIPT = """\
import json, os, pathlib
import torch, torch.distributed as dist

dist.init_process_group()
rank, world = dist.get_rank(), dist.get_world_size()
total = torch.full((1000,), float(rank + 1))
dist.all_reduce(total)
assert (total == world * (world + 1) / 2).all()
pathlib.Path(f"rank{rank}").write_text(f"{world}")
dist.barrier()
dist.destroy_process_group()
"""


def test_a_job_on_a_hammingmesh_runs_on_its_boards(tmp_path: Path) -> None:
    servers = "".join(
        f"  - name: h{n}\n    management: 10.0.0.{n + 1}\n    ports:\n"
        + "".join(f"      - {{name: p{k}, address: 10.{k + 1}.0.{n + 1}/16}}\n" for k in range(4))
        for n in range(16)
    )
    text = f"version: 1\nname: mesh\nservers:\n{servers}hammingmesh: {{boards: 4x4}}\n"
    (tmp_path / "mesh.yaml").write_text(text)
    (tmp_path / "train.py").write_text(SCRIPT)
    launcher = Launcher(tmp_path)
    where = ("--cluster", "mesh.yaml", "--state", "queue")
    submit = ("cluster", "submit", *where, "--servers", "4", "--degree", "2", "--model", "none")
    refused = launcher.run(*submit, "--launch", "hosts", "train.py")
    assert refused.returncode == 2
    assert named(refused.stderr, "launch", "HammingMesh")
    dry = launcher.run(*submit, "--dry-run", "train.py")
    assert dry.returncode == 0, dry.stderr
    assert "2x2 boards, rows 0-1, columns 0-1" in dry.stdout
    made = launcher.run(*submit, "train.py")
    assert made.returncode == 0, made.stderr
    served = launcher.run("cluster", "daemon", *where, "--until-idle")
    assert served.returncode == 0, served.stderr
    status = launcher.run("cluster", "status", "--state", "queue", "1", "--json")
    job = json.loads(status.stdout)
    assert (job["state"], job["exit_code"]) == ("done", 0), job
    assert job["on"] == ["h0", "h1", "h4", "h5"]
    assert job["boards"] == {"rows": [0, 1], "columns": [0, 1]}
    assert [(tmp_path / f"rank{rank}").read_text() for rank in range(4)] == ["4"] * 4
    shown = launcher.run("cluster", "status", "--state", "queue", "1")
    assert "2x2 boards, rows 0-1, columns 0-1" in shown.stdout
    assert "nothing to change" in launcher.run("cluster", "daemon", *where, "--dry-run").stdout
