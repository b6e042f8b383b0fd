"""`topoopt fabric`: finds the sub-verb and runs it; each is a module `fabric_<sub-verb>`.

To add one: a line in SUB_VERBS, and a module with `main(argv) -> exit code`.
"""

from __future__ import annotations

import difflib
import importlib
import sys

from torch_topoopt.launcher.errors import BAD_INPUT, OK, InputError

SUB_VERBS: dict[str, str] = {
    "up": "makes a fabric of network namespaces that stays",
    "down": "removes fabrics of network namespaces, or what is left of them",
    "list": "the fabrics of network namespaces that there are",
    "verify": "measures every link of a fabric of network namespaces",
    "apply": "makes the circuits of a plan on the switches of a cluster",
    "snapshot": "writes down the circuits of a cluster on its switches",
    "restore": "brings the switches back to a snapshot",
    "script": "the shell script that sets up one real host for a plan, or takes that back",
}

_HELP = """\
usage: topoopt fabric SUB-VERB ...

Makes, checks, changes and removes what servers are wired with: emulated fabrics of network
namespaces (as root) and optical switches.

sub-verbs:
{sub_verbs}

examples:
  topoopt fabric up --name lab --servers 12 --degree 4 --bandwidth 25Mbps
  topoopt fabric verify lab --json

`topoopt fabric SUB-VERB --help` explains one; those that print results have --json."""


def main(argv: list[str]) -> int:
    """Runs the verb; returns the exit code."""
    if not argv or argv[0] in ("-h", "--help"):
        lines = "\n".join(f"  {name:<9}{text}" for name, text in SUB_VERBS.items())
        print(_HELP.format(sub_verbs=lines))
        if argv:
            sys.exit(OK)
        return BAD_INPUT
    name, *rest = argv
    if name not in SUB_VERBS:
        near = difflib.get_close_matches(name, SUB_VERBS, n=1)
        known = f"sub-verbs: {', '.join(SUB_VERBS)}"
        hint = f"did you mean `topoopt fabric {near[0]}`?" if near else known
        raise InputError(f"{name!r} is not a sub-verb of `topoopt fabric`; {hint}")
    module = importlib.import_module(f"torch_topoopt.launcher.fabric_{name}")
    code: int = module.main(rest)
    return code
