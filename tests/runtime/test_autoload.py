"""Both entry points by which torch finds the backend, each in a Python of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import torch.distributed as dist
from support.limits import limit_s

ROOT = Path(__file__).parents[2]
reads_named_backends = pytest.mark.skipif(
    not hasattr(dist.Backend, "_ensure_backend_registered"),
    reason="this torch does not read the entry points torch.distributed.backends",
)

OPEN_A_GROUP = """
import sys, torch, torch.distributed as dist
before = hasattr(dist.Backend, "TOPOOPT")
dist.init_process_group(sys.argv[1], store=dist.HashStore(), rank=0, world_size=1)
dist.all_reduce(torch.ones(4))
print(before, dist.get_backend())
"""


def _python(folder: Path, script: str, *arguments: str, **variables: str) -> str:
    """The output of a Python that finds the entry points of pyproject.toml in `folder`."""
    written = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    lines = []
    for group, points in written["project"]["entry-points"].items():
        lines += [f"[{group}]", *(f"{name} = {value}" for name, value in points.items())]
    metadata = folder / "entry_points-1.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: entry-points\nVersion: 1\n")
    (metadata / "entry_points.txt").write_text("\n".join(lines) + "\n")
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments],
        capture_output=True,
        text=True,
        timeout=limit_s(60),
        env={**os.environ, "PYTHONPATH": str(folder), **variables},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@reads_named_backends
@pytest.mark.parametrize("backend", ["topoopt", "cpu:topoopt"])
def test_a_script_that_names_the_backend_gets_it_without_autoload(
    tmp_path: Path, backend: str
) -> None:
    out = _python(tmp_path, OPEN_A_GROUP, backend, TORCH_DEVICE_BACKEND_AUTOLOAD="0")
    assert out.split() == ["False", backend]


def test_the_import_of_torch_loads_the_extension_for_ranks_that_fork(tmp_path: Path) -> None:
    script = "import sys, torch; print('torch_topoopt._backend' in sys.modules)"
    assert _python(tmp_path, script).split() == ["True"]


def test_the_import_of_torch_registers_the_backend(tmp_path: Path) -> None:
    assert _python(tmp_path, OPEN_A_GROUP, "topoopt").split() == ["True", "topoopt"]


@reads_named_backends
def test_a_torch_that_does_not_fit_is_the_error_of_the_group(tmp_path: Path) -> None:
    script = """
import torch
torch.__version__ = "2.10.0"
import torch.distributed as dist
try:
    dist.init_process_group("topoopt", store=dist.HashStore(), rank=0, world_size=1)
except ImportError as error:
    print(error)
"""
    out = _python(tmp_path, script, TORCH_DEVICE_BACKEND_AUTOLOAD="0")
    assert "and this is torch 2.10.0, which is not supported" in out
    assert out.count("\n") == 1
