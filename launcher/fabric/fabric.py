"""`topoopt fabric`: its sub-verbs, each a module `fabric_<sub-verb>`.

To add one: a line in SUB_VERBS, and a module with `main(argv) -> exit code`.
"""

from __future__ import annotations

from torch_topoopt.launcher import sub_verbs

SUB_VERBS: dict[str, str] = {
    "up": "makes a fabric of network namespaces that stays",
    "down": "removes fabrics of network namespaces, or what is left of them",
    "list": "the fabrics of network namespaces that there are",
    "verify": "measures every link of a fabric of network namespaces",
    "apply": "makes the circuits of a plan on the switches of a cluster",
    "snapshot": "writes down the circuits of a cluster on its switches",
    "restore": "brings the switches back to a snapshot",
    "persist": "keeps the addresses of cable ports over restarts of their hosts, or undoes that",
    "script": "the shell script that sets up one real host for a plan, or takes that back",
}

_HELP = """\
usage: topoopt fabric SUB-VERB ...

Makes, checks, changes and removes what servers are wired with: emulated fabrics of network
namespaces (as root) and optical switches.

sub-verbs:
{sub_verbs}

examples:
  topoopt fabric up lab --servers 12 --degree 4 --bandwidth 25Mbps
  topoopt fabric verify lab --json

`topoopt fabric SUB-VERB --help` explains one; those that print results have --json."""


def main(argv: list[str]) -> int:
    """Runs the verb; returns the exit code."""
    return sub_verbs.run("fabric", __package__, SUB_VERBS, _HELP, argv)
