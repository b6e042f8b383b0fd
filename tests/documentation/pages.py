"""The commands that the pages of the documentation show."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import harness.results

ROOT = Path(__file__).parent.parent.parent
PROGRAMS = ("topoopt", "sudo", "make", "python", "pytest", "torchrun", "pip", "eval", "source")
SHELL = ("", "sh", "bash", "console")  # languages of a block whose lines may be commands
_METAVARIABLE = re.compile(r"(?<![\w./$-])[A-Z][A-Z0-9_]*(?:\.[a-z]+)?(?![\w.])|\.\.\.|…|\w\|\w")


@dataclass(frozen=True)
class Command:
    """A command as it is printed, without the comment behind it; `line` counts from 1.

    An `inline` one stands in the text, where it may also name a verb and no more.
    """

    page: str
    line: int
    text: str
    inline: bool

    def __str__(self) -> str:
        return f"{self.page}:{self.line}: {self.text}"


def pages() -> list[str]:
    """All pages, relative to the checkout."""
    rooms = (path for path in sorted((ROOT / "docs").rglob("*")) if path.is_dir())
    folders = (ROOT, ROOT / "docs", *rooms, ROOT / "benchmarks", ROOT / "examples")
    return [
        str(path.relative_to(ROOT))
        for folder in folders
        for path in sorted(folder.glob("*.md"))
        if path.name != "CHANGELOG.md"
    ]


def text_of(page: str) -> str:
    """The text of a page, with the table of results where the site shows it."""
    return harness.results.with_table((ROOT / page).read_text())


def blocks(page: str) -> list[tuple[str, int, list[str]]]:
    """(language, number of its first line, lines) of every fenced block of a page."""
    found: list[tuple[str, int, list[str]]] = []
    inside = False
    for number, line in enumerate(text_of(page).splitlines(), 1):
        if fence := re.match(r"\s*```(\w*)", line):
            inside = not inside
            if inside:
                found.append((fence[1], number + 1, []))
        elif inside:
            found[-1][2].append(line)
    return found


def commands(page: str) -> list[Command]:
    """Every command in a block of the page, and every one in its text that is complete.

    In the text, what has an ellipsis or a word in capitals (`topoopt plan MODEL`) shows a form.
    """
    found = []
    for language, first, lines in blocks(page):
        if language in SHELL:
            found += _of_block(page, first, lines)
    for number, line in _text(page):
        for code in re.findall(r"`([^`]+)`", line):
            program, _, rest = code.partition(" ")
            if program in PROGRAMS and rest and not _METAVARIABLE.search(code):
                found.append(Command(page, number, code, inline=True))
    return sorted(found, key=lambda command: command.line)


def _of_block(page: str, first: int, lines: list[str]) -> list[Command]:
    found = []
    joined = ""
    for number, line in enumerate(lines, first):
        joined += line.strip().removeprefix("$ ")
        if joined.endswith("\\"):
            joined = joined[:-1]
            continue
        text = re.sub(r"\s+#\s.*", "", joined)
        if re.match(rf"(\w+=\S+ )*({'|'.join(PROGRAMS)})(?!: )\b", text):
            found.append(Command(page, number, text, inline=False))
        joined = ""
    return found


def _text(page: str) -> list[tuple[int, str]]:
    """(number, line) of what stands outside of blocks."""
    inside = False
    found = []
    for number, line in enumerate(text_of(page).splitlines(), 1):
        if re.match(r"\s*```", line):
            inside = not inside
        elif not inside:
            found.append((number, line))
    return found
