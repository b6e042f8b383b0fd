"""The changelog has releases with dates, in short sentences, and the newest one is this version."""

from __future__ import annotations

import datetime
import re
from pathlib import Path

import torch_topoopt

TEXT = (Path(__file__).parents[2] / "CHANGELOG.md").read_text(encoding="utf-8")
RELEASES = re.findall(r"^## (\d+\.\d+\.\d+) - (\d{4}-\d{2}-\d{2})$", TEXT, re.MULTILINE)


def test_this_version_is_the_newest_release_or_later() -> None:
    newest = tuple(map(int, RELEASES[0][0].split(".")))
    release, _, suffix = torch_topoopt.__version__.partition(".dev")
    here = tuple(map(int, release.split(".")))
    assert here > newest if suffix else here == newest


def test_every_section_is_a_dated_release_newest_first() -> None:
    sections = re.findall(r"^## (.*)$", TEXT, re.MULTILINE)
    assert [title for title in sections if title != "Unreleased"] == [
        f"{version} - {date}" for version, date in RELEASES
    ]
    assert "Unreleased" not in sections[1:]
    dates = [datetime.date.fromisoformat(date) for _, date in RELEASES]
    assert dates == sorted(dates, reverse=True)


def test_entries_are_one_short_sentence() -> None:
    entries = re.findall(r"^- (.*)$", TEXT, re.MULTILINE)
    assert entries
    assert not [entry for entry in entries if not entry.endswith(".")]
    assert not [entry for entry in entries if len(entry.split()) > 25]
    assert len(TEXT.encode()) <= 15_000 * len(RELEASES)
