"""Builds and loads the test device "lag" (device_extension/), whose streams are slow."""

from __future__ import annotations

import fcntl
import functools
import hashlib
import importlib.util
import os
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from support.limits import limit_s

if TYPE_CHECKING:
    from collections.abc import Callable

_SOURCES = Path(__file__).with_name("device_extension")
_BUILD = Path(__file__).parents[3] / "build" / "device_extension"
_LIMIT_S = limit_s(300.0)


def build() -> Path:
    """The compiled extension, from an earlier run if neither it nor torch has changed."""
    digest = hashlib.sha256(torch.__version__.encode())
    for source in sorted(_SOURCES.iterdir()):
        digest.update(source.read_bytes())
    library = _BUILD / f"lag-{digest.hexdigest()[:16]}.so"
    _BUILD.mkdir(parents=True, exist_ok=True)
    with (_BUILD / "lock").open("w") as lock:  # tests in other processes need it as well
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not library.exists():
            _compile(library)
    return library


def _compile(library: Path) -> None:
    from torch.utils import cpp_extension  # which ranks need not import

    unfinished = library.with_suffix(f".{os.getpid()}")
    includes = [*cpp_extension.include_paths(), sysconfig.get_path("include")]
    folders = cpp_extension.library_paths()
    subprocess.run(
        [
            *(os.environ.get("CXX") or "c++").split(),
            *("-std=c++20", "-O0", "-shared", "-fPIC", "-DTORCH_EXTENSION_NAME=lag"),
            *(f"-I{folder}" for folder in includes),
            str(_SOURCES / "device.cc"),
            *(f"-L{folder}" for folder in folders),
            *("-ltorch_python", "-ltorch", "-ltorch_cpu", "-lc10"),
            *("-o", str(unfinished)),
        ],
        check=True,
        timeout=_LIMIT_S,
    )
    unfinished.replace(library)


def load(library: Path) -> Any:
    """The device's module, also as torch.lag; in a process of its own, which it changes."""
    spec = importlib.util.spec_from_file_location("lag", library)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    sys.modules["lag"] = module
    torch._register_device_module("lag", module)
    return module


def on_device(
    library: Path,
    body: Callable[[int, int], Any],
    backend: str = "cpu:topoopt,lag:topoopt",
    memory: str = "device",
) -> Callable[[int, int], Any]:
    """`body` as a function for run_ranks, with the device loaded and the default group open.

    Its tensors are in `memory`: "device", "host" (which the host reaches, too) or "not there" (of
    which the device says so, wrongly).
    """
    return functools.partial(_main, library, body, backend, memory)


def _main(
    library: Path,
    body: Callable[[int, int], Any],
    backend: str,
    memory: str,
    rank: int,
    world: int,
) -> Any:
    load(library).set_memory(memory)
    dist.init_process_group(backend)
    value = body(rank, world)
    dist.destroy_process_group()
    return value


def abort_once_all_have_called(rank: int, world: int) -> None:
    """Rank 0 aborts the default group, when every rank has come here: none is at an operation
    before the one that shall be aborted."""
    store = dist.distributed_c10d._get_default_store()
    store.set(f"held {rank}", "")
    if rank == 0:
        store.wait([f"held {other}" for other in range(world)])
        dist.group.WORLD.abort()
