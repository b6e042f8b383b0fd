"""Commands that reach a host: every call of ssh, or of a program in its place, is made here.

Host names from files and command lines are checked. A leading dash would make an option (ssh
-oProxyCommand=... runs a program here), and a space or a quote would split into words in the shells
that some options start.
"""

from __future__ import annotations

import re
import shlex
import subprocess
from typing import TYPE_CHECKING

from torch_topoopt.links.errors import FabricError

if TYPE_CHECKING:
    from collections.abc import Sequence

# Batch mode: keys only; it never asks for a password.
DEFAULT_SSH = "ssh -o BatchMode=yes -o ConnectTimeout=10"

_LIMIT_S = 60.0

_HOST = re.compile(r"[A-Za-z0-9_:][A-Za-z0-9._:%-]{0,254}")
_USER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,63}")
_HOST_RULE = "letters, digits, '.', '_', '-', ':' and '%', first no '-', '.' or '%'"


def check_host(name: str) -> str:
    """`name`, of a host or an address; raises ValueError if it is unsafe in a command."""
    if not _HOST.fullmatch(name):
        raise ValueError(f"{name[:80]!r} is not the name or address of a host: {_HOST_RULE}")
    return name


def ssh_command(ssh: Sequence[str], host: str, command: str) -> list[str]:
    """`ssh` (a program and its options) that runs `command` in a shell on `host`.

    `host` may have a user in front, root@h0. Raises ValueError if it is unsafe in a command.
    """
    user, at, name = host.rpartition("@")
    check_host(name)
    if at and not _USER.fullmatch(user):
        raise ValueError(f"{user[:80]!r} is not a user's name (in {host[:80]!r})")
    return [*ssh, "--", host, command]


def reach_command(template: Sequence[str], *, server: str, management: str) -> list[str]:
    """The words of `template` with {server} and {management} filled in; raises ValueError for names
    that no command may get, and ValueError or LookupError for other braces."""
    names = {"server": check_host(server), "management": check_host(management)}
    return [word.format(**names) for word in template]


def run_checked(server: str, command: list[str], given: str, shown: str) -> str:
    """The output of a command that reaches `server`, with `given` as its input.

    Raises FabricError with one line that names the server, and `shown` for the command.
    """
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
