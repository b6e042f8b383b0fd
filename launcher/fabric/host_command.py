"""Commands that run `topoopt` on the servers of a cluster file: here, or over ssh."""

from __future__ import annotations

import shlex
import sys
from typing import TYPE_CHECKING

from torch_topoopt.fabric.ssh import ssh_command
from torch_topoopt.launcher import shared_options
from torch_topoopt.launcher.rendezvous.cluster_site import servers_here

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from torch_topoopt.fabric.cluster_file.cluster_file import ClusterFile


def host_command(
    file: ClusterFile, server: int, words: Sequence[str], arguments: argparse.Namespace
) -> list[str]:
    """The command that runs `topoopt WORDS` on a server: here, or over the --ssh-command and with
    the --remote-command of `arguments`. Raises InputError."""
    ssh = shared_options.ssh_words(arguments)
    if server in servers_here(file):
        return [sys.executable, "-m", "torch_topoopt.launcher.main", *words]
    command = f"{arguments.remote_command} {shlex.join(words)}"
    return ssh_command(ssh, file.servers[server].management, command)
