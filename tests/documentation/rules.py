"""How commands of the documentation are run where they cannot run here as they are printed.

Everything that no rule names runs as it stands, page by page, from top to bottom. A rule must match
some command, else it is out of date and the test fails.
"""

from __future__ import annotations

import re
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, NamedTuple

from pages import blocks

if TYPE_CHECKING:
    from workshop import Workshop


class Smaller(NamedTuple):
    """Written so that it runs in seconds: what is replaced in commands of `pages`."""

    pages: str  # a pattern of page names
    pattern: str
    replacement: str


class Elsewhere(NamedTuple):
    """`pattern` is run by `tests`: what it needs (a switch, a clean machine) is made there."""

    pattern: str
    tests: str  # a file, or file::function


class Given(NamedTuple):
    """A file that a page shows: the block of it that begins with `first_line`."""

    page: str
    file: str
    first_line: str

    def text(self) -> str:
        (lines,) = [b for _, _, b in blocks(self.page) if b and b[0].startswith(self.first_line)]
        return "\n".join(lines) + "\n"


GIVEN = (Given("docs/simulators.md", "ring.txt", "nodes 3 hosts 2"),)

SMALLER = (
    Smaller(".*", r"--servers (32|64|128)\b", "--servers 12"),
    Smaller(".*", r"\b(plan|compare) dlrm\b", r"\1 dlrm:tiny"),
    Smaller(".*", r"\b(plan|compare) vgg\b", r"\1 vgg:tiny"),
    Smaller(".*", r"(--fabric netns|fabric up .*) --servers 12", r"\1 --servers 4 --degree 2"),
    Smaller(".*", r"--epochs 5", "--epochs 1"),
)

ELSEWHERE: tuple[Elsewhere, ...] = ()


def smaller(page: str, text: str) -> str:
    for rule in SMALLER:
        if re.fullmatch(rule.pages, page):
            text = re.sub(rule.pattern, rule.replacement, text)
    return text


def hosts_of(page: str, workshop: Workshop) -> AbstractContextManager[None]:
    """The machines that a page talks of, if it does."""
    return nullcontext()
