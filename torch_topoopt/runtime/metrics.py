"""metrics.jsonl: one JSON object per line, appended by the launcher and by the ranks of one run.

Every line has `event`: "run" (the started command), "stage" (name and seconds), "train" (logged by
the script), "step" (about once a second: `iteration`, mean `step_s` since the event before, and
`loss`; see step_log.py), "route" (`what` a server did with the paths that a controller assigns),
"link" (bytes of one directed link), "cable" (`what` happened to one that stayed lost), "gap" (`why`
measurements are missing) and "end" (exit code). `time_s` is the number of seconds since the run
began. Each line is one write to a file opened for appending, so lines of several processes never
mix and a killed process leaves no half line behind.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import time
from pathlib import Path
from typing import Any

METRICS_VARIABLE = "TOPOOPT_METRICS"
STARTED_VARIABLE = "TOPOOPT_STARTED"

_RESERVED = ("event", "time_s")
_LOADED_AT = time.time()


def _append(path: str | os.PathLike[str], record: dict[str, Any]) -> None:
    try:
        line = json.dumps(record, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ValueError(_refusal(record) or f"metrics: {error}") from None
    data = line.encode() + b"\n"
    handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        written = os.write(handle, data)
        end = os.lseek(handle, 0, os.SEEK_CUR)
        if written != len(data) and os.fstat(handle).st_size == end:
            os.ftruncate(handle, end - written)  # so that no half line remains
    finally:
        os.close(handle)
    if written != len(data):
        raise OSError(errno.ENOSPC, f"wrote {written} of {len(data)} bytes of a line", str(path))


def _refusal(record: dict[str, Any]) -> str | None:
    """Names the first value that is not valid JSON."""
    for name, value in record.items():
        try:
            json.dumps(value, allow_nan=False)
        except (TypeError, ValueError):
            return (
                f"metrics: {name}={value!r} is not a finite number, text, bool, None, "
                "or a list or dict of those (for a tensor, log its .item())"
            )
    return None


def log(**values: Any) -> None:
    """Appends one training record to the run's metrics.jsonl; does nothing outside `topoopt run`.

    Call it on one rank, e.g. `torch_topoopt.log(epoch=3, accuracy=0.97)`. Values are numbers, text,
    bools, None, or lists and dicts of those. Raises ValueError for anything else, for NaN and
    infinities, and for the reserved names `event` and `time_s`. If the run folder is not writable,
    the launcher warns, and training continues.
    """
    for name in _RESERVED:
        if name in values:
            raise ValueError(f"metrics: the name {name!r} is reserved; choose another")
    if os.environ.get(METRICS_VARIABLE):
        try:
            log_event("train", **values)
        except OSError as error:
            logging.getLogger("torch_topoopt").info("a record cannot be written: %s", error)
    elif refusal := _refusal(values):
        raise ValueError(refusal)


def log_event(event: str, **values: Any) -> None:
    """Appends one event of a rank, as log() does; nothing outside `topoopt run`."""
    path = os.environ.get(METRICS_VARIABLE)
    if not path:
        return
    started = float(os.environ.get(STARTED_VARIABLE, _LOADED_AT))
    _append(path, {"event": event, "time_s": round(time.time() - started, 6), **values})


class MetricsWriter:
    """The launcher's side: appends events with `time_s` counted from `started` (Unix seconds).

    `error` is why an event could not be written, once `keeps_on` is set; "" without a failure.
    """

    def __init__(self, path: str | os.PathLike[str], started: float) -> None:
        self.path = Path(path)
        self.started = started
        self.keeps_on = False
        self.error = ""

    def write(self, event: str, **values: Any) -> None:
        """Appends one event; raises ValueError for a value that is not valid JSON, and, unless
        `keeps_on` is set, OSError."""
        elapsed = round(time.time() - self.started, 6)
        try:
            _append(self.path, {"event": event, "time_s": elapsed, **values})
        except OSError as error:
            if not self.keeps_on:
                raise
            self.error = error.strerror or str(error)
