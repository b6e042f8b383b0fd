"""The page of every error message, from the sources, so that the search of the site finds them."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
_HOLE = "…"  # stands for a value
_THROW = re.compile(r"throw (?:std::)?\w+\((.*?)\);", re.S)
_LITERAL = re.compile(r'"((?:[^"\\]|\\.)*)"')

_HEAD = f"""# Error messages

Search this site for a message: this page has all that the sources raise, by file. `{_HOLE}` stands
for a value. [Troubleshooting](../guides/troubleshooting.md) explains the frequent ones.
"""


def error_page() -> str:
    """The page, in Markdown: a section per file, a line per message."""
    lines = [_HEAD]
    for path in _sources():
        text = path.read_text(encoding="utf-8")
        found = _of_python(text) if path.suffix == ".py" else _of_cpp(text)
        messages = sorted({message for message in found if len(message.split()) > 1})
        if messages:
            lines += [f"## {path.relative_to(ROOT)}", ""]
            lines += [f"- {_as_code(message)}" for message in messages] + [""]
    return "\n".join(lines)


def _sources() -> list[Path]:
    folders = ("torch_topoopt", "launcher", "csrc")
    every = (path for folder in folders for path in (ROOT / folder).rglob("*"))
    return sorted(path for path in every if path.suffix in (".py", ".cc", ".h"))


def _of_python(text: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call) and node.exc.args:
            yield _text_of(node.exc.args[0])


def _text_of(node: ast.expr) -> str:
    """The text that an expression makes, with holes for what is not literal."""
    if isinstance(node, ast.Constant):
        return str(node.value) if isinstance(node.value, str) else _HOLE
    if isinstance(node, ast.JoinedStr):
        return "".join(map(_text_of, node.values))
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return _text_of(node.left) + _text_of(node.right)
    return _HOLE


def _of_cpp(text: str) -> Iterator[str]:
    for thrown in _THROW.finditer(text):
        literals = _LITERAL.findall(thrown[1])
        if literals:
            first, *between = _LITERAL.split(thrown[1])[::2]  # an empty one joins two literals
            holes = [_HOLE if rest.strip() else "" for rest in between]
            text = "".join(map("".join, zip(literals, holes, strict=True)))
            yield (_HOLE if "+" in first else "") + text


def _as_code(message: str) -> str:
    plain = " ".join(message.split()).replace("|", "\\|")
    return f"`` {plain} ``"
