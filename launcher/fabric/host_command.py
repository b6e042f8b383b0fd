"""Commands that run `topoopt` on the servers of a cluster file: here, or over ssh."""

from __future__ import annotations

import shlex
import sys
from typing import TYPE_CHECKING

from torch_topoopt.fabric.ssh import ssh_command
from torch_topoopt.launcher.errors import InputError
from torch_topoopt.launcher.rendezvous.cluster_site import servers_here

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from torch_topoopt.fabric.cluster_file.cluster_file import ClusterFile


def host_command(
    file: ClusterFile, server: int, words: Sequence[str], arguments: argparse.Namespace
) -> list[str]:
    """What runs `topoopt WORDS` on a server. `arguments` has --ssh-command and --remote-command."""
    ssh = shlex.split(arguments.ssh_command)
    if not ssh:
        raise InputError("ssh-command: is empty")
    if server in servers_here(file):
        return [sys.executable, "-m", "torch_topoopt.launcher.main", *words]
    command = f"{arguments.remote_command} {shlex.join(words)}"
    return ssh_command(ssh, file.servers[server].management, command)
