"""Environment variables are named once, each with its type and meaning, and all are documented."""

from __future__ import annotations

import ast
import re

import rooms

PAGE = rooms.ROOT / "docs" / "reference" / "environment.md"
KNOWN = rooms.modules()
# The table of run options names the variables that carry its options to the ranks, and rank_main
# runs as a file, without the package.
OWN_NAMES = ("launcher.run.", "runtime.link_options.", "processes.rank_main")


def _named() -> dict[str, str]:
    """The line of each variable in environment.py, by its name."""
    lines = KNOWN["environment"].read_text(encoding="utf-8").splitlines()
    return {line.split('"')[1]: line for line in lines if ' = "' in line}


def test_each_has_a_type_and_a_meaning() -> None:
    wrong = [
        line
        for line in _named().values()
        if not re.search(r'_VARIABLE = "TOPOOPT_\w+"  # .+: ', line)
    ]
    assert wrong == []


def test_the_page_has_all_of_them() -> None:
    rows = re.findall(r"^\| (`.*?) \|", PAGE.read_text(encoding="utf-8"), re.M)
    documented = re.findall(r"`(TOPOOPT_\w+)`", "\n".join(rows))
    assert sorted(documented) == sorted(_named())


def test_no_other_module_names_one() -> None:
    named = _named()
    again = [
        f"{module}: {node.value}"
        for module, path in KNOWN.items()
        if module != "environment" and not module.startswith(OWN_NAMES)
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and node.value in named
    ]
    assert again == []
