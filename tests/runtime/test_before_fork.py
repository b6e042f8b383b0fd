"""What the process that forks ranks does for all of them."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

from support.limits import limit_s

from torch_topoopt.plan import codec
from torch_topoopt.processes.fork_server import ForkServer

if TYPE_CHECKING:
    from pathlib import Path

_PROGRAM = """
import json, sys, threading
from torch_topoopt.plan import codec
print(json.dumps({
    "loaded": "torch_topoopt._backend" in sys.modules,
    "readers": codec._decoder.cache_info().currsize > 0,
    "threads": threading.active_count(),
}))
"""


def started(server: ForkServer, tmp_path: Path) -> dict[str, object]:
    """What a program that does nothing finds in its process."""
    program, output = tmp_path / "program.py", tmp_path / "output"
    program.write_text(_PROGRAM)
    with output.open("w") as file:
        process = server.start([str(program)], os.environ, streams=(0, file.fileno(), 2))
        assert process.wait(limit_s(60)) == 0
    found: dict[str, object] = json.loads(output.read_text())
    return found


def test_forks_of_a_prepared_server_have_the_backend_and_the_readers(tmp_path: Path) -> None:
    with ForkServer("torch_topoopt.runtime.before_fork") as server:
        assert started(server, tmp_path) == {"loaded": True, "readers": True, "threads": 1}


def test_a_reader_that_is_prepared_is_the_one_that_reads() -> None:
    from torch_topoopt.links.wiring import Wiring

    codec.prepare_reader(Wiring)
    before = codec._decoder.cache_info().misses
    codec.prepare_reader(Wiring)
    text = Wiring(1, "test", "digest", 20000, ()).to_json()
    assert Wiring.from_json(text).fabric == "test"
    assert codec._decoder.cache_info().misses == before
