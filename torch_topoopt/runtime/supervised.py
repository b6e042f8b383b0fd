"""The files for observers of a job: a rank's status and its last operations.

They are in the folder of the run (`topoopt run`), or, for jobs started otherwise, in a folder of
the job in the user's runtime folder. The C++ backend writes them
(csrc/backend/supervision/supervisor.h); a thread here adds the script position of each Python
thread. PyTorch's variables for its flight recorder apply: TORCH_FR_BUFFER_SIZE,
TORCH_FR_DUMP_TEMP_FILE, TORCH_FR_DUMP_ON_TIMEOUT, TORCH_FR_WAIT_TIMEOUT_DUMP_MILSEC, and their
former names.
"""

from __future__ import annotations

import _thread
import contextlib
import functools
import json
import logging
import os
import sys
import threading
import traceback
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from torch_topoopt.runtime.rank_errors import MOST_FRAMES, raised_at
from torch_topoopt.runtime.session_types import SupervisedRank, Supervision
from torch_topoopt.supervision.job_files import (
    JobFolder,
    folder_without_run,
    forget_running,
    note_running,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch_topoopt.runtime.job_network import Place

log = logging.getLogger("torch_topoopt")

_ENTRIES = ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE")
_DUMP_FILE = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
_DUMP_FAILURES = ("TORCH_FR_DUMP_ON_TIMEOUT", "TORCH_NCCL_DUMP_ON_TIMEOUT")
_DUMP_LIMIT = ("TORCH_FR_WAIT_TIMEOUT_DUMP_MILSEC", "TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC")
_MOST_ENTRIES = 1 << 20
_FALSE = ("0", "n", "no", "false", "off")


def _value(names: tuple[str, ...], default: str) -> tuple[str, str]:
    """The first of these variables that is set, and its value."""
    return next(((n, v) for n in names if (v := os.environ.get(n))), (names[0], default))


def _number(names: tuple[str, ...], default: int, most: int) -> int:
    """Raises RuntimeError unless it is a number from 0 to `most`."""
    name, text = _value(names, str(default))
    if not (text.isascii() and text.isdigit()) or int(text) > most:
        raise RuntimeError(f"{name}: {text!r} is not a number from 0 to {most}")
    return int(text)


@functools.cache
def _recorder(extension: Any) -> Any:
    """The recorder of this process; None if the user disabled it."""
    entries = _number(_ENTRIES, 2000, _MOST_ENTRIES)
    return extension.FlightRecorder(entries) if entries else None


def supervise(extension: Any, place: Place, server: int) -> tuple[Any, Any, Callable[[], None]]:
    """The FlightRecorder and Supervision of a job's Session, and a function to call after closing.

    None, None with a warning if the job's files cannot be written.
    """
    recorder = _recorder(extension)
    try:
        folder = _folder()
        return recorder, *_supervision(place, server, folder, records=bool(recorder))
    except OSError as error:
        log.warning("no status and no dumps of the flight recorder: %s", error)
        return None, None, lambda: None


def _folder() -> JobFolder:
    """Makes the folder if necessary; raises OSError."""
    given = os.environ.get("TOPOOPT_RUN_DIR")
    path = Path(given) if given else folder_without_run(_job_name())
    return JobFolder(path.absolute())


def _job_name() -> str:
    """A name that is equal on all ranks of a machine."""
    where = (os.environ.get("MASTER_ADDR", "job"), os.environ.get("MASTER_PORT", str(os.getpid())))
    return "-".join("".join(c if c.isalnum() or c in ".-" else "_" for c in text) for text in where)


def _attempt() -> int:
    text = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    return int(text) if text.isascii() and text.isdigit() else 0


def _supervision(
    place: Place, server: int, folder: JobFolder, *, records: bool
) -> tuple[Supervision, Callable[[], None]]:
    rank, attempt = place.ranks[place.index], _attempt()
    of = SupervisedRank(rank, place.world_size, server, attempt)
    # Before torch 2.15 its analyzer accepts no other library, and no unknown sender.
    if _torch_version() < (2, 15):
        of.library, of.any_sender = "nccl", str(rank)
    supervision = Supervision(of)
    prefix = _value(_DUMP_FILE, "")[1]
    if records:
        supervision.dump_path = f"{prefix}{rank}" if prefix else str(folder.dump(attempt, rank))
        supervision.dumps_failures = _value(_DUMP_FAILURES, "1")[1].lower() not in _FALSE
        supervision.dump_limit = timedelta(
            milliseconds=_number(_DUMP_LIMIT, 15_000, 24 * 3600 * 1000)
        )
        Path(supervision.dump_path).unlink(missing_ok=True)  # of an earlier job of that name
        stacks = _watch_stacks(Path(supervision.dump_path), rank)
        supervision.stacks_fd, supervision.stacks_done_fd = stacks
    if len(place.ranks) < place.world_size:  # the files belong to the job of all ranks
        return supervision, lambda: None
    supervision.status_path = str(folder.status(rank))
    # The launcher warns if the folder of a run is not writable.
    supervision.warns_of_status = "TOPOOPT_RUN_DIR" not in os.environ
    supervision.request_path = str(folder.request)
    leads = os.environ.get("LOCAL_RANK", "0") == "0"
    if leads:
        note_running(folder.path)
    return supervision, lambda: _closed(folder, leads)


def _closed(folder: JobFolder, leads: bool) -> None:
    if leads:
        forget_running()
    folder.tidy()


def _torch_version() -> tuple[int, int]:
    major, minor, *_ = torch.__version__.split(".")
    return int(major), int(minor)


# ---- stacks of Python threads --------------------------------------------------------------------

_stacks: tuple[int, int, int] | None = None  # process, and its eventfds
_stacks_path = Path()
_stacks_rank = 0


def _watch_stacks(dump: Path, rank: int) -> tuple[int, int]:
    """Two eventfds: when the first is raised, a thread writes the stacks of all threads next to
    `dump`, and then raises the second."""
    global _stacks, _stacks_path, _stacks_rank
    _stacks_path, _stacks_rank = dump.with_name(f"stacks-{rank}.json"), rank
    _stacks_path.unlink(missing_ok=True)
    if _stacks is None or _stacks[0] != os.getpid():  # a fork has no threads
        handle, done = (
            os.eventfd(0, os.EFD_CLOEXEC),
            os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK),
        )
        _stacks = (os.getpid(), handle, done)
        # threading.Thread would wait until the thread runs, on a busy start of many ranks.
        _thread.start_new_thread(_write_stacks, (handle, done))
    return _stacks[1:]


def _write_stacks(handle: int, done: int) -> None:
    while True:
        os.eventfd_read(handle)
        with contextlib.suppress(OSError):  # the dump itself remains
            _save_stacks(_stacks_path, _stacks_rank)
        os.eventfd_write(done, 1)


def _save_stacks(path: Path, rank: int) -> None:
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    own, main = threading.get_ident(), threading.main_thread().ident
    threads = [
        {
            "name": names.get(identity, "?"),
            "frames": [
                {"file": frame.filename, "line": frame.lineno, "function": frame.name}
                for frame in (identity == main and raised_at())
                or traceback.extract_stack(top, limit=MOST_FRAMES)
            ],
        }
        for identity, top in sys._current_frames().items()
        if identity != own
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{os.getpid()}-stacks.partial")
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        json.dump({"rank": rank, "threads": threads}, file)
    partial.replace(path)
