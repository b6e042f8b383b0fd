"""Runs tests of PyTorch's suite one at a time, each in a process tree of its own.

    python suite_server.py LIMIT_S     with BACKEND, WORLD_SIZE and the plan in the environment

Prints the names of all tests as one line of JSON; then, for each name that it reads, what became of
that test: its outcome, and what explains it. torch is imported once, and all else is forked.
"""

from __future__ import annotations

import importlib
import json
import os
import select
import signal
import sys
import tempfile
import traceback
import unittest
from pathlib import Path
from typing import Any

LOG_TAIL_CHARACTERS = 4000


def _case_class(suite: Any, limit_s: float) -> type[unittest.TestCase]:
    import torch
    from torch.testing._internal import common_distributed

    # The suite's own limit strikes first, for it reports where every rank is.
    common_distributed.TIMEOUT_DEFAULT = max(1, int(limit_s - 5))
    common_distributed.TIMEOUT_OVERRIDE.clear()

    class TopooptSuite(suite.TestDistBackend, suite.DistributedTest._DistTestBase):
        def setUp(self) -> None:
            super().setUp()
            self._start_processes(torch.multiprocessing.get_context("fork").Process)

        def _check_return_codes(self, function: Any, elapsed_s: float) -> None:
            super()._check_return_codes(function, elapsed_s)
            if function not in self.skip_return_code_checks:
                codes = {process.exitcode for process in self.processes}
                assert len(codes) == 1, f"the ranks ended with different codes: {codes}"

    return TopooptSuite


class _Recorder(unittest.TestResult):
    outcome = "passed"
    detail = ""

    def _record(self, outcome: str, detail: str) -> None:
        if self.outcome != "failed":
            self.outcome, self.detail = outcome, detail

    def addSkip(self, test: unittest.TestCase, reason: str) -> None:  # noqa: N802 - unittest's name
        self._record("skipped", str(reason))

    def addError(self, test: unittest.TestCase, err: Any) -> None:  # noqa: N802 - unittest's name
        self._record("failed", "".join(traceback.format_exception(*err)))

    addFailure = addError  # noqa: N815 - unittest's name

    def addUnexpectedSuccess(self, test: unittest.TestCase) -> None:  # noqa: N802 - unittest's name
        self._record("failed", "passed, though the suite expects a failure")


def _run_in_this_process(case: type[unittest.TestCase], name: str, folder: Path) -> None:
    os.setsid()
    log = os.open(folder / "log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(log, 1)
    os.dup2(log, 2)
    recorder = _Recorder()
    case(name).run(recorder)
    document = {"outcome": recorder.outcome, "detail": recorder.detail}
    (folder / "result.json").write_text(json.dumps(document))


def _run(case: type[unittest.TestCase], name: str, folder: Path, limit_s: float) -> dict[str, str]:
    result = folder / "result.json"
    result.unlink(missing_ok=True)
    child = os.fork()
    if child == 0:
        try:
            _run_in_this_process(case, name, folder)
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(0)
    ended = os.pidfd_open(child)
    in_time = bool(select.select([ended], [], [], limit_s)[0])
    os.close(ended)
    # The ranks are in the child's session, so one signal ends whatever is left of the tree.
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    if result.exists():
        record: dict[str, str] = json.loads(result.read_text())
    else:
        why = "ended without a result" if in_time else f"did not end within {limit_s:g} s"
        record = {"outcome": "failed", "detail": why}
    if record["outcome"] == "failed":
        log = (folder / "log").read_text(errors="replace")[-LOG_TAIL_CHARACTERS:]
        record["detail"] += f"\n--- end of the log\n{log}"
    return record


def main() -> None:
    limit_s = float(sys.argv[1])
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    with tempfile.TemporaryDirectory(prefix="torch_suite") as temporary:
        folder = Path(temporary)
        (folder / "barrier").mkdir()
        os.environ["TEMP_DIR"] = temporary
        os.environ["INIT_METHOD"] = f"file://{temporary}/store"
        importlib.import_module("torch_topoopt.runtime.backend").register()
        suite = importlib.import_module("opened_suite").load(os.environ["BACKEND"])
        case = _case_class(suite, limit_s)
        print(json.dumps(unittest.TestLoader().getTestCaseNames(case)), file=answers)
        for line in sys.stdin:
            print(json.dumps(_run(case, line.strip(), folder, limit_s)), file=answers)


if __name__ == "__main__":
    main()
