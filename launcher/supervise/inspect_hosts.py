"""Dumps of a job on the hosts of a cluster: what one host prints, and the request to all."""

from __future__ import annotations

import base64
import json
import re
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from torch_topoopt.fabric.ssh import run_checked
from torch_topoopt.launcher.errors import InputError
from torch_topoopt.launcher.fabric.host_command import host_command
from torch_topoopt.launcher.supervise import jobs
from torch_topoopt.links.errors import FabricError
from torch_topoopt.plan.codec import DocumentError, decode
from torch_topoopt.supervision.dumps import read_dumps
from torch_topoopt.supervision.job_files import JobFolder
from torch_topoopt.supervision.statuses import read_statuses

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from torch_topoopt.fabric.cluster_file.cluster_file import ClusterFile
    from torch_topoopt.supervision.dumps import Dump

_FILE = re.compile(r"rank_\d+|stacks-\d+\.json")


@dataclass(frozen=True)
class DumpFile:
    """A file of a folder with dumps."""

    name: str
    base64: str


@dataclass(frozen=True)
class HostDumps:
    """The files of one server's ranks."""

    folder: str
    files: tuple[DumpFile, ...]


@dataclass(frozen=True)
class HostAnswer:
    """A server, and the folder of its dumps there, or the error."""

    server: str
    folder: str | None
    error: str | None


def job_of_server(run: Path | None, server: int) -> JobFolder:
    """The latest job with ranks of `server`, among those that run, or of the folder `run`.

    Several hosts may share a file system. Raises InputError.
    """
    for folder in _folders(run):
        job = JobFolder(folder)
        if server in {status.server for status in read_statuses(job).values()}:
            return job
        if (dumps := job.last_dumps()) and server in {d.server for d in read_dumps(dumps).values()}:
            return job
    where = f"{run} has no dumps" if run else "no job with a rank"
    raise InputError(f"{where} of server {server}; name a run folder of this host, or its parent")


def _folders(run: Path | None) -> Iterator[Path]:
    if run is None:
        yield from jobs.running()
    elif not run.is_dir():
        raise InputError(f"{run}: there is no such folder on this host")
    yield from [run] if run is not None else []
    yield from reversed(jobs.recorded(run or jobs.RUNS))


def dumps_of(job: JobFolder, server: int) -> HostDumps:
    """The last dumps of the server's ranks."""
    folder = job.last_dumps() or job.path
    ranks = [rank for rank, dump in read_dumps(folder).items() if dump.server == server]
    paths = [folder / name for r in ranks for name in (f"rank_{r}", f"stacks-{r}.json")]
    files = (
        DumpFile(p.name, base64.b64encode(p.read_bytes()).decode()) for p in paths if p.exists()
    )
    return HostDumps(str(folder), tuple(files))


def collect(
    file: ClusterFile, arguments: argparse.Namespace
) -> tuple[dict[int, Dump], list[HostAnswer]]:
    """The dumps of all ranks, and the answers of all hosts. Raises FabricError without any dump."""
    words = ["inspect", *([str(arguments.run)] if arguments.run else [])]
    words += ["--wait", f"{arguments.wait:g}"]
    commands = [
        host_command(file, server, [*words, "--dumps-of", str(server)], arguments)
        for server in range(len(file.servers))
    ]
    names = [server.name for server in file.servers]
    with ThreadPoolExecutor(len(names)) as workers, tempfile.TemporaryDirectory() as folder:
        targets = [Path(folder)] * len(names)  # a rank is on one host
        answers = list(workers.map(_answer, names, commands, targets))
        if all(answer.error for answer in answers):
            raise FabricError("; ".join(str(answer.error) for answer in answers))
        return read_dumps(Path(folder)), answers


def _answer(name: str, command: list[str], target: Path) -> HostAnswer:
    """Runs the command of a host, and writes its files into `target`."""
    try:
        found: HostDumps = decode(HostDumps, json.loads(run_checked(name, command, "", "")))
        for file in found.files:
            if not _FILE.fullmatch(file.name):
                raise DocumentError(f"{file.name!r} is no dump")
            (target / file.name).write_bytes(base64.b64decode(file.base64, validate=True))
    except FabricError as error:
        return HostAnswer(name, None, str(error))
    except (DocumentError, ValueError) as error:
        version = "is it the same version of torch_topoopt?"
        return HostAnswer(name, None, f"{name}: does not print dumps ({error}); {version}")
    return HostAnswer(name, found.folder, None)
