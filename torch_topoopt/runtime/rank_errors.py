"""Reports to the launcher the exception that ended a rank, as torch's `@record` for its function.

torch's elastic launcher reads the file TORCHELASTIC_ERROR_FILE, which is only written by scripts
with `@record`. In ranks of `topoopt run` an uncaught exception is written there before it is
printed.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
import traceback
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import TracebackType

_FILE_VARIABLE = "TORCHELASTIC_ERROR_FILE"


def record_uncaught() -> None:
    """Installs the hook where the launcher waits for such a file; else does nothing."""
    if "TOPOOPT_RUN_DIR" not in os.environ or _FILE_VARIABLE not in os.environ:
        return
    printed = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, where: TracebackType | None) -> None:
        try:
            _write(error)
        finally:
            printed(kind, error, where)

    sys.excepthook = hook


def _write(error: BaseException) -> None:
    """In torch's format; see torch.distributed.elastic.multiprocessing.errors."""
    path = Path(os.environ[_FILE_VARIABLE])
    if isinstance(error, KeyboardInterrupt) or path.exists():  # `@record` was there before
        return
    details = {
        "py_callstack": "".join(traceback.format_exception(error)),
        "timestamp": str(int(time.time())),
    }
    record = {"message": {"message": f"{type(error).__name__}: {error}", "extraInfo": details}}
    with contextlib.suppress(OSError):  # the error itself is printed all the same
        path.write_text(json.dumps(record), encoding="utf-8")
