"""The output of the verbs: numbered stages with their time, tables, one line per error, JSON."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING, Any, TypeAlias

from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from torch_topoopt.launcher import signals
from torch_topoopt.launcher.fitted_table import FittedTable
from torch_topoopt.launcher.parser import defaults_text
from torch_topoopt.plan.result_json import plain
from torch_topoopt.plan.units import format_seconds

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator, Sequence

    from rich.console import RenderableType
    from rich.progress import TaskID

    _Table = tuple[str, Sequence[str], Sequence[Sequence[str]]]
    _Part: TypeAlias = str | _Table | RenderableType

_PLAIN_WIDTH = 120
_USUAL_WIDTH = 80  # of terminals that do not say theirs
_LEAST_WIDTH = 40  # on narrower terminals, lines are left to the terminal to wrap
_QUIET_S = 30.0  # before a longer computation is announced, if no line can move
_MOST_ERROR, _ERROR_START, _ERROR_END = 2000, 800, 400  # characters


def error(message: str) -> None:
    """The error line of a failed command; of a very long one, its beginning and its end."""
    if len(message) > _MOST_ERROR:
        left_out = len(message) - _ERROR_START - _ERROR_END
        end = message[-_ERROR_END:]
        message = f"{message[:_ERROR_START]}... ({left_out} characters) ...{end}"
    print(f"topoopt: error: {message}", file=sys.stderr)


def warning(message: str) -> None:
    print(f"topoopt: warning: {message}", file=sys.stderr)


class StageProgress:
    """A stage in progress; `result` is shown next to its time when it has ended."""

    def __init__(self, name: str, show: Callable[[float | None, str], None]) -> None:
        self.name = name
        self.result = ""
        self.seconds = 0.0
        self._show = show

    def progress(self, fraction: float | None, text: str) -> None:
        """Shows the progress (None: unknown), and raises for an unnoticed signal."""
        signals.check()
        self._show(fraction, text)


class Terminal:
    """Prints for people: to stdout, or to stderr when stdout is kept for JSON.

    On a terminal there are colours and a moving progress line; elsewhere plain lines. A `quiet` one
    prints results only; a `verbose` one also prints the time of each step, on stderr.
    """

    def __init__(
        self, *, json_output: bool = False, quiet: bool = False, verbose: bool = False
    ) -> None:
        self.quiet, self._verbose = quiet, verbose
        self._file = sys.stderr if json_output else sys.stdout
        self._console = make_console(self._file)

    @classmethod
    def of(cls, arguments: argparse.Namespace) -> Terminal:
        """For --json and the options of `shared_options.add_verbosity`; a verbose terminal begins
        with the options that have their defaults."""
        terminal = cls(json_output=arguments.json, quiet=arguments.quiet, verbose=arguments.verbose)
        terminal._detail(f"assumed: {defaults_text(arguments)}")
        return terminal

    def _detail(self, text: str) -> None:
        if self._verbose:
            print(f"topoopt: {text}", file=sys.stderr, flush=True)

    def note(self, text: str) -> None:
        """A line that is no result."""
        if not self.quiet:
            self.line(text)

    def line(self, text: str = "") -> None:
        """One line of plain text; a long one is left to the terminal to wrap."""
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def table(self, title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """The first column names the rows; the others are figures and aligned to the right."""
        self.show(FittedTable(title, columns, rows))

    def show(self, part: RenderableType) -> None:
        """Prints a renderable of rich."""
        with self._console.capture() as capture:
            self._console.print(part, crop=False)
        for line in capture.get().splitlines():
            print(line.rstrip(), file=self._file)

    @property
    def moves(self) -> bool:
        """Whether output can be replaced: this is a terminal."""
        return self._console.is_terminal

    @contextmanager
    def screen(self) -> Iterator[Callable[[Sequence[_Part]], None]]:
        """Gives a function that replaces the lines, tables (arguments of `table`) and renderables
        that it showed before; the last ones stay."""
        with Live(console=self._console, auto_refresh=False) as live:

            def show(parts: Sequence[_Part]) -> None:
                live.update(Group(*map(_renderable, parts)), refresh=True)

            yield show

    @contextmanager
    def stage(
        self, number: int, count: int, name: str, *, live: bool = True
    ) -> Iterator[StageProgress]:
        """Announces a stage, shows its progress, and ends with its time and result.

        `live=False` for a stage whose own output goes to the terminal.
        """
        signals.check()
        heading = f"[{number}/{count}] {name}"
        started = time.perf_counter()
        if live and self._console.is_terminal and not self.quiet:
            with self._progress(heading) as show:
                stage = StageProgress(name, show)
                yield stage
        else:
            self.note(heading)
            stage = StageProgress(name, lambda fraction, text: None)
            yield stage
        stage.seconds = time.perf_counter() - started
        result = f"  {stage.result}" if stage.result else ""
        self.note(f"{heading}: {format_seconds(stage.seconds)}{result}")

    @contextmanager
    def progress(self, heading: str) -> Iterator[Callable[[float | None, str], None]]:
        """A moving line for one long computation outside the stages."""
        started = time.perf_counter()
        if self.quiet:
            yield lambda fraction, text: signals.check()
        elif not self._console.is_terminal:
            with _reminders(heading) as remind:
                yield remind
        else:
            with self._progress(heading) as show:

                def checked(fraction: float | None, text: str) -> None:
                    signals.check()
                    show(fraction, text)

                yield checked
        self._detail(f"{heading}: {format_seconds(time.perf_counter() - started)}")

    @contextmanager
    def _progress(self, heading: str) -> Iterator[Callable[[float | None, str], None]]:
        display = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=24),
            TimeElapsedColumn(),
            TextColumn("{task.fields[text]}", markup=False),
            console=self._console,
            transient=True,
            refresh_per_second=5,
        )
        with display:
            task: TaskID = display.add_task(heading, total=None, text="")

            def show(fraction: float | None, text: str) -> None:
                total = None if fraction is None else 1.0
                display.update(task, completed=fraction or 0.0, total=total, text=text)

            yield show


def _renderable(part: _Part) -> RenderableType:
    if isinstance(part, str):
        return escape(part)
    return FittedTable(*part) if isinstance(part, tuple) else part


@contextmanager
def _reminders(heading: str) -> Iterator[Callable[[float | None, str], None]]:
    """Prints a line to stderr every `_QUIET_S` seconds; gives a function that sets its text."""
    doing, over, started = [""], threading.Event(), time.monotonic()

    def remind() -> None:
        while not over.wait(_QUIET_S):
            words = f"{heading}: {doing[0]}" if doing[0] else heading
            elapsed = format_seconds(time.monotonic() - started)
            print(f"topoopt: {words} ({elapsed} so far)", file=sys.stderr, flush=True)

    def show(fraction: float | None, text: str) -> None:
        signals.check()
        doing[0] = text

    thread = threading.Thread(target=remind, name="topoopt progress", daemon=True)
    thread.start()
    try:
        yield show
    finally:
        over.set()
        thread.join()


def make_console(file: IO[str]) -> Console:
    """A rich console whose lines never depend on the width of a non-terminal."""
    if file.isatty():
        return Console(file=file, width=max(_columns(file), _LEAST_WIDTH))
    return Console(file=file, width=_PLAIN_WIDTH, force_terminal=False, color_system=None)


def _columns(file: IO[str]) -> int:
    """The width of a terminal: COLUMNS, or else its own, which may be that of stderr alone."""
    text = os.environ.get("COLUMNS", "")
    if text.isdecimal() and int(text):
        return int(text)
    return os.get_terminal_size(file.fileno()).columns or _USUAL_WIDTH


def _indented(value: Any) -> str:
    return json.dumps(value, indent=2, allow_nan=False)


def print_json(result: object, text: Callable[[Any], str] = _indented) -> None:
    """Prints a result (see `plan.result_json`), laid out by `text`."""
    print(text(plain(result)))


@contextmanager
def stdout_to_stderr() -> Iterator[None]:
    """Redirects stdout of this process and its children to stderr, for `--json`."""
    sys.stdout.flush()
    kept = os.dup(1)
    try:
        os.dup2(2, 1)
        yield
    finally:
        sys.stdout.flush()
        os.dup2(kept, 1)
        os.close(kept)
