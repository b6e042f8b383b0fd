"""The report page in a headless Chromium."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from typing import TYPE_CHECKING

import matplotlib
import matplotlib.image
import numpy as np
import pytest
from report_page import ANALYSED, SECTIONS, Page
from report_runs import (
    COMMAND,
    make_events,
    make_plan,
    write_run,
)
from support.limits import limit_s

from torch_topoopt.report import write_report
from torch_topoopt.report.theme import THEME

if TYPE_CHECKING:
    from pathlib import Path

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed")


def browse(page: Path, *options: str) -> tuple[str, str, list[str]]:
    """Opens `page` in a headless Chromium without a network.

    Returns its output, its log, and the addresses that the page itself asked for (Chromium's own
    requests have no page as their initiator).
    """
    requests = page.with_suffix(".requests.json")
    command = [
        str(CHROMIUM), "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic",
        "--no-first-run", "--disable-background-networking", "--disable-component-update",
        "--disable-sync", "--hide-scrollbars", "--enable-logging=stderr",
        "--host-resolver-rules=MAP * ~NOTFOUND", f"--log-net-log={requests}",
        f"--user-data-dir={page.parent / 'profile'}", *options, page.as_uri(),
    ]  # fmt: skip
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        output, log = process.communicate(timeout=limit_s(60))
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate(timeout=limit_s(60))
    assert process.returncode == 0, log
    events = [event.get("params", {}) for event in json.loads(requests.read_text())["events"]]
    asked = [
        event["url"]
        for event in events
        if "url" in event and event.get("initiator", "not an origin") != "not an origin"
    ]
    return output, log, asked


@needs_chromium
def test_chromium_shows_the_page_without_errors_or_requests_in_both_themes(tmp_path: Path) -> None:
    plan = make_plan(12, (1, 5), "full")
    path = write_report(write_run(tmp_path / "run", plan, make_events(plan)))
    for theme, options in enumerate(((), ("--blink-settings=preferredColorScheme=0",))):
        picture = path.with_suffix(f".{theme}.png")
        size = "--window-size=1100,1500"
        _, log, asked = browse(path, f"--screenshot={picture}", size, *options)
        assert "CONSOLE" not in log  # where Chromium reports script errors and refused requests
        assert asked == []
        pixels = matplotlib.image.imread(picture)[:, :, :3]
        page = matplotlib.colors.to_rgb(THEME["page"][theme])
        assert np.allclose(pixels[0, 0], page, atol=1 / 255)
        colours = (pixels * 255).astype(int) @ np.array([1 << 16, 1 << 8, 1])
        assert len(np.unique(colours)) > 100


@needs_chromium
def test_the_check_for_requests_and_errors_notices_both(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    page.write_text('<img src="http://probe.invalid/x.png"><script>missing()</script>')
    _, log, asked = browse(page, "--dump-dom")
    assert asked == ["http://probe.invalid/x.png"]
    assert "CONSOLE" in log


@needs_chromium
def test_chromium_keeps_every_section_of_the_page(run: Path) -> None:
    dom, log, asked = browse(write_report(run), "--dump-dom")
    page = Page(dom.strip())
    assert [name for name in page.sections if name not in ANALYSED] == list(SECTIONS)
    assert set(page.sections) == {*SECTIONS, *ANALYSED}
    assert page.sections["reproduce"].endswith(" ".join(COMMAND[:-1]) + " 'a b; c'")
    assert "CONSOLE" not in log
    assert asked == []
