"""Reports to the launcher the exception that ended a rank, as torch's `@record` for its function.

torch's elastic launcher reads the file TORCHELASTIC_ERROR_FILE, which only scripts with `@record`
write. In ranks of `topoopt run`, this module writes an uncaught exception there before it is
printed.

One failure ends all ranks. Only the first rank that fails by itself prints its traceback, so that
it does not drown in the others'. All are in files, in the folder TOPOOPT_RANK_ERRORS; if that is
not set, each rank prints its own.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
import time
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import TracebackType

_FILE_VARIABLE = "TORCHELASTIC_ERROR_FILE"
ERRORS_VARIABLE = "TOPOOPT_RANK_ERRORS"
MOST_FRAMES = 64  # of a recorded stack

# Without frames, which would keep the script's objects: forked ranks drop the traceback itself.
_raised_at: traceback.StackSummary | None = None

# Phrases of the backend's errors when others failed, are gone or are stopped; see job_end.h and
# cable_reports.cc in csrc/transport/endpoint.
_REPORT = re.compile(
    r"topoopt: (\w+: )?(rank \d+ (failed: |has left)"
    r"|ranks? [\d, ]+ (is|are) (gone|stopped|unreachable)|ranks? [\d, ]+ cannot be reached"
    r"|lost the link|the host of rank)"
)
_MISSED = re.compile(
    r"topoopt: (?:(\w+): )?(?:rank \d+ failed: .*?)??"
    r"ranks? ([\d, ]+) (has left the job|is gone|are gone)"
)


@dataclass(frozen=True)
class Missed:
    """The ranks missing in `call` ("" if unknown); `left`: they had ended normally, or shut their
    groups down."""

    ranks: tuple[int, ...]
    call: str
    left: bool


def reports_another(message: str) -> bool:
    """Whether a rank's exception is due to another rank that has failed, or is gone."""
    return _REPORT.search(message) is not None


def missed_by(message: str) -> Missed | None:
    """The ranks that had ended before, by the exception of a rank."""
    found = _MISSED.search(message)
    if found is None:
        return None
    ranks = tuple(map(int, found[2].split(", ")))
    return Missed(ranks, found[1] or "", found[3] == "has left the job")


def record_uncaught() -> None:
    """Installs the hook if the launcher waits for such a file; else does nothing."""
    if "TOPOOPT_RUN_DIR" not in os.environ or _FILE_VARIABLE not in os.environ:
        return
    printed = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, where: TracebackType | None) -> None:
        global _raised_at
        _raised_at = _innermost(where)
        shown = True
        try:
            _write(error)
            shown = _is_first(error)
        finally:
            if shown:
                printed(kind, error, where)

    sys.excepthook = hook


def raised_at() -> traceback.StackSummary | None:
    """The origin of the uncaught exception that ends this process, after its main thread has left
    the script. None if there is none."""
    error: BaseException | None = getattr(sys, "last_value", None)
    if error is None:
        return None
    return _raised_at or _innermost(error.__traceback__)


def _innermost(where: TracebackType | None) -> traceback.StackSummary | None:
    return traceback.extract_tb(where, limit=-MOST_FRAMES) if where is not None else None


def _is_first(error: BaseException) -> bool:
    """Whether to print a traceback. Saves it if the launcher has a folder for it."""
    folder = os.environ.get(ERRORS_VARIABLE)
    if not folder:
        return True
    attempt = f"attempt{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}"
    path = Path(folder) / attempt / f"rank-{os.environ.get('RANK', '')}.txt"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(traceback.format_exception(error)), encoding="utf-8")
        if not reports_another(str(error)):
            path.with_name("first.txt").hardlink_to(path)
            return True
    except FileExistsError:  # of another rank
        return False
    except OSError:
        return True
    return False


def _write(error: BaseException) -> None:
    """In torch's format; see torch.distributed.elastic.multiprocessing.errors."""
    path = Path(os.environ[_FILE_VARIABLE])
    if isinstance(error, KeyboardInterrupt) or path.exists():  # `@record` wrote it
        return
    details = {
        "py_callstack": "".join(traceback.format_exception(error)),
        "timestamp": str(int(time.time())),
    }
    record = {"message": {"message": f"{type(error).__name__}: {error}", "extraInfo": details}}
    with contextlib.suppress(OSError):  # the error itself is still printed
        path.write_text(json.dumps(record), encoding="utf-8")
