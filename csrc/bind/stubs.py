"""Writes the stubs of the two extension modules, from their docstrings and signatures.

    python csrc/bind/stubs.py      torch_topoopt/_core.pyi and _backend.pyi; `make stubs` runs it

tests/bindings/test_stubs.py fails where they are not what this would write.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

import pybind11_stubgen
import torch  # noqa: F401 - without which _backend cannot be loaded

FOLDER = Path(__file__).parents[2] / "torch_topoopt"
_WIDTH = 100
MODULES = ("_core", "_backend")
_HEADER = "# Made by `make stubs` from csrc/bind; tests/bindings/test_stubs.py compares.\n"
# Whatever converts to a number is taken; that is no part of the interface.
_PLAINER = (
    (r"typing\.SupportsInt(?: \| typing\.SupportsIndex)?", "int"),
    (r"typing\.SupportsFloat(?: \| typing\.SupportsIndex)?", "float"),
    (r"\bCallable\b(?!\[)", "Callable[..., typing.Any]"),
    (r"\bdict\b(?!\[)", "dict[str, typing.Any]"),
    (r"\btuple\b(?!\[)", "tuple[typing.Any, ...]"),
    (r"\n__all__: .*", ""),
)


def stub(module: str) -> str:
    """The text of one module's stub."""
    with tempfile.TemporaryDirectory() as folder:
        pybind11_stubgen.main(["-o", folder, "--exit-code", f"torch_topoopt.{module}"])
        text = (Path(folder) / "torch_topoopt" / f"{module}.pyi").read_text(encoding="utf-8")
    for pattern, plain in _PLAINER:
        text = re.sub(pattern, plain, text)
    for command in (("check", "--fix", "--quiet", "--select=I,F401"), ("format", "--quiet")):
        done = subprocess.run(
            [sys.executable, "-m", "ruff", *command, "--stdin-filename", f"{FOLDER}/{module}.pyi"],
            input=text, capture_output=True, text=True, check=True,
        )  # fmt: skip
        text = done.stdout
    return _HEADER + "".join(map(_wrapped, text.splitlines(keepends=True)))


def _wrapped(line: str) -> str:
    """Of a docstring that is too long; code is broken by ruff."""
    if len(line) <= _WIDTH:
        return line
    indent = line[: -len(line.lstrip())]
    text = textwrap.fill(
        line.strip(),
        _WIDTH,
        initial_indent=indent,
        subsequent_indent=indent,
        break_on_hyphens=False,
    )
    return text + "\n"


def main() -> None:
    """Writes both."""
    for module in MODULES:
        (FOLDER / f"{module}.pyi").write_text(stub(module), encoding="utf-8")


if __name__ == "__main__":
    main()
