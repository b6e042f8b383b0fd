"""`topoopt run --watch` and `--serve`: the view of `topoopt top` while the job trains.

With --watch the view owns the terminal. So the ranks' output goes to the logs of the run, and its
end is shown below the view. If the output is no terminal, a line is printed now and then.
"""

from __future__ import annotations

import argparse
import contextlib
import threading
import time
from typing import TYPE_CHECKING

from rich.console import Group
from rich.text import Text

from torch_topoopt.launcher import console
from torch_topoopt.launcher.supervise import live_page, top_view
from torch_topoopt.plan.codec import DocumentError
from torch_topoopt.supervision.job_files import JobFolder
from torch_topoopt.supervision.recorded_timeline import parse_range
from torch_topoopt.supervision.running_job import LiveJob

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from torch_topoopt.launcher.console import Terminal
    from torch_topoopt.launcher.supervise.live_page import LivePage

_INTERVAL_S = 1.0
_LINE_S = 10.0  # without a terminal
_TAIL_LINES, _TAIL_BYTES = 6, 4096


def add_options(group: argparse._ActionsContainer) -> None:
    group.add_argument(
        "--watch",
        action="store_true",
        help="while the job trains, show what `topoopt top` shows; the ranks' output goes to "
        "the logs of the run, and its last lines are shown",
    )
    live_page.add_options(group)
    group.add_argument(
        "--timeline",
        type=_iterations,
        metavar="FIRST:END",
        help="record iterations FIRST to END - 1, counted from 0, and write them beside the "
        "predicted ones as timeline.json, for ui.perfetto.dev",
    )


def _iterations(text: str) -> str:
    try:
        parse_range(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text


def redirects(arguments: argparse.Namespace) -> str:
    """The value of torchrun's --redirects: with --watch all output, unless the user chose."""
    if not arguments.watch or arguments.tee != "0" or arguments.redirects != "0":
        return str(arguments.redirects)
    return "3"


@contextlib.contextmanager
def watching(arguments: argparse.Namespace, terminal: Terminal, run: Path) -> Iterator[None]:
    """Inside, the job of that folder is shown as requested."""
    if not (arguments.watch or arguments.serve):
        yield
        return
    with live_page.served(arguments) as page:
        if page is not None:
            terminal.line(f"      {page.url} shows this job while it trains")
        view = _View(run, terminal if arguments.watch else None, page)
        view.start()
        try:
            yield
        finally:
            view.stop()


class _View:
    """A thread, since torch's launcher occupies the main one."""

    def __init__(self, run: Path, terminal: Terminal | None, page: LivePage | None) -> None:
        self._job = LiveJob(JobFolder(run.absolute()))
        self._logs = run / "logs"
        self._terminal, self._page = terminal, page
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._show, name="topoopt watch", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._over.set()
        self._thread.join()

    def _show(self) -> None:
        try:
            if self._terminal is not None and self._terminal.moves:
                with self._terminal.screen() as show:
                    while self._read():
                        if self._job.ranks:  # else the last view stays
                            view = top_view.job_view(self._job)
                            show([Group(view, *map(Text, last_lines(self._logs)))])
            else:
                self._lines()
        except (DocumentError, OSError) as error:  # training continues without a view
            console.warning(f"watch: {error}")

    def _lines(self) -> None:
        said = time.monotonic()
        while self._read():
            early = time.monotonic() - said < _LINE_S
            if self._terminal is None or early or not self._job.ranks:
                continue
            said = time.monotonic()
            self._terminal.note(f"      {top_view.one_line(self._job)}")

    def _read(self) -> bool:
        """Waits a while; False when the job is over."""
        if self._over.wait(_INTERVAL_S):
            return False
        self._job.read()
        if self._page is not None:
            self._page.publish(self._job)
        return True


def last_lines(logs: Path, count: int = _TAIL_LINES) -> list[str]:
    """The last lines of the log that grew last."""
    paths = [path for path in logs.glob("**/std*.log") if path.is_file()]
    paths = [path for path in paths if path.stat().st_size]
    if not paths:
        return []
    path = max(paths, key=lambda path: path.stat().st_mtime_ns)
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - _TAIL_BYTES))
        text = file.read().decode(errors="replace")
    name = path.relative_to(logs)
    lines = [line for line in text.splitlines() if line.strip()][-count:]
    return [f"{name}:", *("  " + "".join(filter(str.isprintable, line)) for line in lines)]
