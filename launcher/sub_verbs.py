"""Verbs that have sub-verbs: finds the module of one and runs it."""

from __future__ import annotations

import difflib
import importlib
import sys
from typing import TYPE_CHECKING

from torch_topoopt.launcher.errors import BAD_INPUT, OK, InputError

if TYPE_CHECKING:
    from collections.abc import Mapping


def run(
    verb: str, package: str, sub_verbs: Mapping[str, str], help_text: str, argv: list[str]
) -> int:
    """Runs `topoopt VERB SUB-VERB ...` in the module `package.SUB-VERB`; returns the exit code.

    `sub_verbs`: a description of each, inserted into `help_text` at `{sub_verbs}`.
    """
    if not argv or argv[0] in ("-h", "--help"):
        lines = "\n".join(f"  {name:<9}{text}" for name, text in sub_verbs.items())
        print(help_text.format(sub_verbs=lines))
        if argv:
            sys.exit(OK)
        return BAD_INPUT
    name, *rest = argv
    if name not in sub_verbs:
        near = difflib.get_close_matches(name, sub_verbs, n=1)
        known = f"sub-verbs: {', '.join(sub_verbs)}"
        hint = f"did you mean `topoopt {verb} {near[0]}`?" if near else known
        raise InputError(f"{name!r} is not a sub-verb of `topoopt {verb}`; {hint}")
    module = importlib.import_module(f"{package}.{name}")
    code: int = module.main(rest)
    return code
