"""Hosts that can be asked and repaired: this one, and others over ssh."""

from __future__ import annotations

import shlex
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from torch_topoopt.fabric.ssh import ssh_command
from torch_topoopt.links.errors import FabricError
from torch_topoopt.plan.codec import DocumentError
from torch_topoopt.tools.doctor.facts import HostFacts
from torch_topoopt.tools.doctor.gather import gather

if TYPE_CHECKING:
    from torch_topoopt.fabric.cluster_file.cluster_file import ClusterFile

_LIMIT_S = 60.0


class HostAccess(Protocol):
    """One host. Both methods raise FabricError with one line that names it."""

    def facts(self, *, probing: bool) -> HostFacts:
        """The facts of the host; without `probing`, it sends nothing."""
        ...

    def shell(self, command: str) -> None:
        """Runs a shell command."""
        ...


@dataclass(frozen=True)
class LocalAccess:
    """This host, which is `server` of the file."""

    server: str
    file: ClusterFile | None

    def facts(self, *, probing: bool) -> HostFacts:
        return gather(self.file, self.server, probing=probing)

    def shell(self, command: str) -> None:
        _run(self.server, ["sh", "-c", command], "", command)


@dataclass(frozen=True)
class RemoteHost:
    """A host that `ssh` (a command and its options) reaches at `address`, a name or address that a
    cluster file may have. `remote_command` starts topoopt there.
    """

    server: str
    address: str
    file: ClusterFile
    ssh: tuple[str, ...]
    remote_command: str

    def facts(self, *, probing: bool) -> HostFacts:
        command = f"{self.remote_command} doctor --facts --cluster - --host {self.server}"
        if not probing:
            command += " --no-probes"
        text = _run(
            self.server, ssh_command(self.ssh, self.address, command), self.file.to_yaml(), ""
        )
        try:
            return HostFacts.from_json(text)
        except DocumentError as error:
            raise FabricError(
                f"{self.server}: {self.address} does not print facts ({error}); is it the same "
                "version of torch_topoopt?"
            ) from None

    def shell(self, command: str) -> None:
        remote = f"sh -c {shlex.quote(command)}"
        _run(self.server, ssh_command(self.ssh, self.address, remote), "", command)


def _run(server: str, command: list[str], given: str, shown: str) -> str:
    what = f"{server}: `{shown}`" if shown else f"{server}: {shlex.join(command[:-1])}"
    try:
        done = subprocess.run(
            command, input=given, capture_output=True, text=True, timeout=_LIMIT_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise FabricError(f"{what}: no end within {_LIMIT_S:g} s") from None
    except OSError as error:
        raise FabricError(f"{what}: {error.strerror}") from None
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines() or [f"ended with {done.returncode}"]
        raise FabricError(f"{what}: {lines[-1]}")
    return done.stdout
