"""The commands that the pages of the documentation show, and the marks that say whether they run.

A mark is an HTML comment on the line before a block, or behind a command in the text:
docs/project/development.md has its forms.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import harness.results

ROOT = Path(__file__).parent.parent.parent
PROGRAMS = ("topoopt", "sudo", "make", "python", "pytest", "torchrun", "pip", "eval", "source")
SHELL = ("sh", "bash", "console")  # languages of a block whose lines are commands
_METAVARIABLE = re.compile(r"(?<![\w./$-])[A-Z][A-Z0-9_]*(?:\.[a-z]+)?(?![\w.])|\.\.\.|…|\w\|\w")
_MARK = re.compile(r'<!-- (run|norun|file)((?:=| \w+=)"[^"]*"(?: \w+="[^"]*")*)? -->')
_INLINE = re.compile(rf"`([^`]+)`(?: ({_MARK.pattern}))?")


@dataclass(frozen=True)
class Mark:
    """`run`, with options of `quick`; or `norun`, with the reason; or `file`, with its name."""

    kind: str
    text: str = ""
    quick: tuple[str, ...] = ()

    @classmethod
    def parse(cls, line: str) -> Mark | None:
        """The mark that a line consists of, if it is one."""
        found = _MARK.fullmatch(line.strip())
        if found is None:
            return None
        values = re.findall(r'(\w*)="([^"]*)"', found[2] or "")
        text = next((value for name, value in values if not name), "")
        quick = tuple(value for name, value in values if name == "quick")
        known = len(quick) + bool(text) == len(values)
        if not known or bool(text) == (found[1] == "run") or (quick and text):
            return None
        return cls(found[1], text, quick)

    def quickly(self, text: str) -> str:
        """The command with the options that let it end in seconds: of several, the last counts."""
        for quick in self.quick:
            word, _, options = quick.partition(" ")
            if word in text.split():
                text += f" {options}"
        return text


@dataclass(frozen=True)
class Block:
    """A fenced block; `line` is the number of its first line, counted from 1."""

    page: str
    language: str
    line: int
    lines: list[str]
    mark: Mark | None

    @property
    def text(self) -> str:
        return "\n".join(self.lines) + "\n"

    def commands(self) -> list[Command]:
        """The commands of the block, whose lines may begin with a prompt."""
        found = []
        joined = ""
        for number, line in enumerate(self.lines, self.line):
            joined += line.strip().removeprefix("$ ")
            if joined.endswith("\\"):
                joined = joined[:-1]
                continue
            text = re.sub(r"\s+#\s.*", "", joined)
            if re.match(rf"(\w+=\S+ )*({'|'.join(PROGRAMS)})(?!: )\b", text):
                found.append(Command(self.page, number, text, self.mark))
            joined = ""
        return found

    @property
    def needs_mark(self) -> bool:
        return self.language in SHELL or (not self.language and bool(self.commands()))


@dataclass(frozen=True)
class Command:
    """A command as it is printed, without the comment behind it; `line` counts from 1."""

    page: str
    line: int
    text: str
    mark: Mark | None  # of an unmarked command in the text, only the options are checked

    @property
    def runs(self) -> bool:
        return self.mark is not None and self.mark.kind == "run"

    @property
    def quick(self) -> str:
        """The command as the tests run it."""
        return self.mark.quickly(self.text) if self.mark is not None else self.text

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


def blocks(page: str) -> list[Block]:
    """Every fenced block of a page."""
    found: list[Block] = []
    inside = False
    before = ""
    for number, line in enumerate(text_of(page).splitlines(), 1):
        if fence := re.match(r"\s*```(\w*)", line):
            inside = not inside
            if inside:
                found.append(Block(page, fence[1], number + 1, [], Mark.parse(before)))
        elif inside:
            found[-1].lines.append(line)
        before = line
    return found


def files(page: str) -> dict[str, str]:
    """The files that a page shows, by their names."""
    return {b.mark.text: b.text for b in blocks(page) if b.mark and b.mark.kind == "file"}


def commands(page: str) -> list[Command]:
    """Every command in a block of the page, and every one in its text that is complete.

    In the text, what has an ellipsis or a word in capitals (`topoopt plan MODEL`) shows a form.
    """
    found = []
    for block in blocks(page):
        if block.needs_mark:
            found += block.commands()
    for number, line in _text(page):
        for code, mark, *_ in _INLINE.findall(line):
            program, _, rest = code.partition(" ")
            if program in PROGRAMS and rest and not _METAVARIABLE.search(code):
                found.append(Command(page, number, code, Mark.parse(mark)))
    return sorted(found, key=lambda command: command.line)


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
