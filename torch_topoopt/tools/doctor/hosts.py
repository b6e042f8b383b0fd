"""Hosts that can be asked and repaired: this one, and others over ssh."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from torch_topoopt.fabric.ssh import run_checked, ssh_command
from torch_topoopt.links.errors import FabricError
from torch_topoopt.plan.codec import DocumentError
from torch_topoopt.tools.doctor.facts import HostFacts
from torch_topoopt.tools.doctor.gather import gather

if TYPE_CHECKING:
    from torch_topoopt.fabric.cluster_file.cluster_file import ClusterFile


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
        run_checked(self.server, ["sh", "-c", command], "", command)


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
        text = run_checked(
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
        run_checked(self.server, ssh_command(self.ssh, self.address, remote), "", command)
