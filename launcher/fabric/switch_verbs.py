"""Options and output of the sub-verbs of `topoopt fabric` that change circuits."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from torch_topoopt.launcher import console, shared_options, signals
from torch_topoopt.launcher.errors import InputError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator, Mapping

    from torch_topoopt.fabric.cluster.switches import SwitchProgress
    from torch_topoopt.fabric.cluster_file.cluster_file import ClusterFile
    from torch_topoopt.fabric.switches.circuits import Difference

DRY_RUN = "nothing was changed (--dry-run)"


def add_cluster_option(options: argparse.ArgumentParser) -> None:
    options.add_argument(
        "--cluster",
        required=True,
        metavar="CLUSTER.yaml",
        help="the cluster file: its switches, and the sockets of each that are yours",
    )


def add_change_options(options: argparse.ArgumentParser) -> None:
    shared_options.add(options, "dry-run")
    options.add_argument(
        "--timeout",
        type=float,
        metavar="SECONDS",
        help="how long each switch may take until all its circuits carry light (seconds, default: "
        "by what its vendor says)",
    )


def check_timeout(arguments: argparse.Namespace) -> None:
    timeout_s = arguments.timeout
    if timeout_s is not None and not 0 < timeout_s < float("inf"):
        raise InputError(f"timeout: {timeout_s:g} is not a number of seconds greater than 0")


def load_switched(path: str) -> ClusterFile:
    """The cluster file; raises DocumentError, or InputError if it has no switches."""
    from torch_topoopt.fabric.cluster_file.load import load_cluster

    file = load_cluster(path)
    if not file.switches:
        raise InputError(f"cluster: {path} has no switches, only cables that people plug")
    return file


def panels_of_people(file: ClusterFile) -> list[str]:
    """The switches that are a person at a patch panel, prompted on the terminal."""
    return [switch.name for switch in file.switches if switch.kind == "manual"]


@contextmanager
def progress_of(terminal: console.Terminal, file: ClusterFile) -> Iterator[SwitchProgress]:
    """Shows the activity of the switches, and raises for an unnoticed Ctrl-C.

    A prompt to a person excludes a moving line, which would erase it.
    """
    if panels_of_people(file):
        yield lambda name, done, of, what: signals.check()
        return
    with terminal.progress("switches") as show:

        def progress(name: str, done: int, of: int, what: str) -> None:
            show(done / of if of else None, f"{name}: {done} of {of} circuits, {what}")

        signals.check()
        yield progress


def print_changes(
    say: Callable[[str], None], differences: Mapping[str, Difference], *, dry: bool
) -> None:
    """One line per circuit, under the name of its switch."""
    for name, difference in differences.items():
        if not difference:
            say(f"{name}: nothing to change")
            continue
        removed, added = len(difference.remove), len(difference.add)
        how = f"{removed} to remove, {added} to add" if dry else f"{removed} removed, {added} added"
        say(f"{name}: circuits: {how}")
        for line in difference.describe():
            say(f"  {line}")
    if dry:
        say(DRY_RUN)


@dataclass(frozen=True)
class ChangedSwitch:
    """A switch and the circuits that change on it."""

    JSON_FIELDS: ClassVar = ("name", "difference.remove", "difference.add")

    name: str
    difference: Difference


@dataclass(frozen=True)
class ChangedSwitches:
    """The result of `topoopt fabric restore`."""

    JSON_FIELDS: ClassVar[tuple[str, ...]] = ("dry_run", "switches")

    dry_run: bool
    differences: Mapping[str, Difference]

    def switches(self) -> list[ChangedSwitch]:
        return [ChangedSwitch(*item) for item in self.differences.items()]


def new_folder(given: str | None, cluster: str, stamp: str) -> Path:
    """The folder of a snapshot: the given one, or a new one next to the cluster file each time."""
    path = Path(cluster)
    return Path(given) if given else path.with_name(f"{path.stem}-before-{stamp}")
