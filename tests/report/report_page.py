"""A parsed report page, for the tests that look into it."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from typing import TYPE_CHECKING, Any

from torch_topoopt.report import write_report

if TYPE_CHECKING:
    from pathlib import Path

# In the order of the page; ANALYSED only where there was something to work out.
SECTIONS = (
    "headline", "glance", "rounds", "stages", "training", "reproduce", "topology",
    "wiring", "traffic", "search", "strategy", "operators", "failures",
)  # fmt: skip
OF_A_RUN = ("stages", "training", "reproduce")
ANALYSED = ("answers", "slowest", "timeline", "splits", "what-if", "ports", "costs", "pull")
VOID = {"meta", "br", "hr", "img", "link", "input", "wbr"}


class Page(HTMLParser):
    """A parsed page: checks that tags balance, and keeps elements, texts and figures."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.json: dict[str, Any] = {}
        self.tags: list[tuple[str, dict[str, str]]] = []
        self.sections: dict[str, str] = {}
        self.data: list[float] = []
        self.rows: dict[str, list[list[str]]] = {}
        self._section = ""
        self.feed(text)
        self.close()
        assert self.open == [], f"never closed: {self.open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = {name: value or "" for name, value in attrs}
        self.tags.append((tag, attributes))
        if tag in ("section", "header"):
            self._section = attributes["id"]
            self.sections[self._section] = ""
            self.rows[self._section] = []
        elif tag == "data":
            self.data.append(float(attributes["value"]))
        elif tag == "tr":
            self.rows[self._section].append([])
        elif tag in ("td", "th"):
            self.rows[self._section][-1].append("")
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, {name: value or "" for name, value in attrs}))

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag
        if tag in ("section", "header"):
            self._section = ""

    def handle_data(self, data: str) -> None:
        if self.open[-1:] == ["script"] and self.tags[-1][1].get("id") == "data":
            self.json = json.loads(data)
        if self._section:
            self.sections[self._section] += data
            if {"td", "th"} & set(self.open):
                self.rows[self._section][-1][-1] += data

    def attributes(self, name: str) -> list[str]:
        return [attributes[name] for _, attributes in self.tags if name in attributes]


def report(folder: Path, *, analysed: bool = False) -> tuple[str, Page]:
    text = write_report(folder, analysed=analysed).read_text(encoding="utf-8")
    return text, Page(text)
