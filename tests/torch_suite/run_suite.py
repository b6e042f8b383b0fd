"""Runs PyTorch's suite against "topoopt" and says what became of each test.

    python tests/torch_suite/run_suite.py [--world-size N] [--backend gloo] [--select REGEX]

What must come of it at 3 and 4 ranks is in expected.toml, which test_torch_suite.py checks.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

from support.backend.ranks import make_plan, wired  # noqa: E402
from support.limits import limit_s  # noqa: E402 - found through the line above

LIMIT_S = 40.0  # for one test; the slowest takes 5 s on an idle machine


class Suite:
    """A suite server for one world size. `names` are those of all tests."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.names: list[str] = self._answer()

    def run(self, name: str) -> dict[str, str]:
        """{"outcome": passed, skipped or failed, "detail": why}"""
        assert self._process.stdin is not None
        self._process.stdin.write(name + "\n")
        self._process.stdin.flush()
        record: dict[str, str] = self._answer()
        return record

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the suite server ended; its error is in the output above"
        return json.loads(line)


@contextlib.contextmanager
def started(world_size: int, backend: str = "topoopt") -> Iterator[Suite]:
    """The suite for ranks of a loopback fabric on which not all of them are neighbours."""
    degree = 1 if world_size == 2 else 2
    with (
        tempfile.TemporaryDirectory(prefix="torch_suite_plan") as folder,
        wired(make_plan(world_size, degree), Path(folder)) as environment,
        subprocess.Popen(
            [sys.executable, "-W", "ignore", str(HERE / "suite_server.py"), str(limit_s(LIMIT_S))],
            env={
                **os.environ,
                **environment,
                "BACKEND": backend,
                "WORLD_SIZE": str(world_size),
                "OMP_NUM_THREADS": "1",
                "TORCH_DEVICE_BACKEND_AUTOLOAD": "0",  # the server registers the backend itself
            },
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as process,
    ):
        try:
            yield Suite(process)
        finally:
            assert process.stdin is not None
            process.stdin.close()


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--world-size", type=int, default=3)
    parser.add_argument("--backend", default="topoopt")
    parser.add_argument("--select", default="", help="regular expression of names")
    arguments = parser.parse_args()
    counts: dict[str, int] = {}
    with started(arguments.world_size, arguments.backend) as suite:
        for name in suite.names:
            if not re.search(arguments.select, name):
                continue
            start = time.monotonic()
            record = suite.run(name)
            counts[record["outcome"]] = counts.get(record["outcome"], 0) + 1
            detail = "" if record["outcome"] == "passed" else record["detail"]
            seconds = time.monotonic() - start
            print(f"{record['outcome']:8} {seconds:6.2f} s  {name}  {detail}", flush=True)
    print(" ".join(f"{count} {outcome}" for outcome, count in sorted(counts.items())))
    return int("failed" in counts)


if __name__ == "__main__":
    sys.exit(main())
