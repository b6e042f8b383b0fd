"""`topoopt fabric`: finds the sub-verb and runs it; each is a module `fabric_<sub-verb>` of its own.

To add one: a line in SUB_VERBS, and a module with `main(argv) -> exit code`.
"""

from __future__ import annotations

import difflib
import importlib

from torch_topoopt.launcher.errors import BAD_INPUT, OK, InputError

SUB_VERBS: dict[str, str] = {}

_HELP = """\
usage: topoopt fabric SUB-VERB ...

Makes, checks, changes and removes what servers are wired with.

sub-verbs:
{sub_verbs}

`topoopt fabric SUB-VERB --help` explains one."""


def main(argv: list[str]) -> int:
    """Runs the verb; returns the exit code."""
    if not argv or argv[0] in ("-h", "--help"):
        lines = "\n".join(f"  {name:<9}{text}" for name, text in SUB_VERBS.items())
        print(_HELP.format(sub_verbs=lines))
        return OK if argv else BAD_INPUT
    name, *rest = argv
    if name not in SUB_VERBS:
        near = difflib.get_close_matches(name, SUB_VERBS, n=1)
        known = f"sub-verbs: {', '.join(SUB_VERBS)}"
        hint = f"did you mean `topoopt fabric {near[0]}`?" if near else known
        raise InputError(f"{name!r} is not a sub-verb of `topoopt fabric`; {hint}")
    module = importlib.import_module(f"torch_topoopt.launcher.fabric_{name}")
    code: int = module.main(rest)
    return code
