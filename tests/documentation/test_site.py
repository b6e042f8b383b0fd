"""The site that `make site` builds: without a warning, complete, and of nothing from elsewhere."""

from __future__ import annotations

import html
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from json_schemas import RESULTS as RESULTS_OF_VERBS
from support.limits import limit_s

from harness.results import PAGE_MARK, RESULTS, Results
from torch_topoopt.launcher.main import VERBS

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("mkdocs", reason="the site needs mkdocs: pip install -e '.[docs]'")
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", folder],
        cwd=ROOT,
        env={"PATH": "/usr/bin:/bin", "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=limit_s(120),
    )
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr
    return folder


def test_every_page_and_verb_is_on_the_site(site: Path) -> None:
    pages = {path.relative_to(ROOT / "docs") for path in (ROOT / "docs").rglob("*.md")}
    assert pages <= {path.relative_to(site).with_suffix(".md") for path in site.rglob("*.html")}
    assert set(VERBS) == {path.stem for path in (site / "cli").glob("*.html")}
    assert "topoopt run" in (site / "cli" / "run.html").read_text()
    for command in RESULTS_OF_VERBS:
        page = (site / "cli" / f"{command.split()[0]}.html").read_text()
        assert f"topoopt {command} --json</code></summary>" in page


def test_the_readme_is_the_first_page_and_its_links_stay_on_the_site(site: Path) -> None:
    first = (site / "index.html").read_text()
    assert "wired directly to each other" in first
    for link in re.findall(r'href="([^"#:]+\.html)', first):
        assert (site / link).is_file(), link


def test_the_api_has_what_a_script_calls(site: Path) -> None:
    text = (site / "api" / "torch_topoopt.html").read_text()
    for name in ("stats", "parallelize", "pipeline", "new_process_group"):
        assert f'id="torch_topoopt.{name}"' in text


def test_every_row_and_reason_of_the_figures_is_on_the_page_of_results(site: Path) -> None:
    page = html.unescape((site / "planning" / "figure-results.html").read_text())
    rows = json.loads((ROOT / "figures" / "table.json").read_text())["rows"]
    tables = page.split("<table>")[2:]  # the first one is the overview
    assert sum(part.count("<tr>") - 1 for part in tables) == len(rows)
    assert all(row["quantity"] in page for row in rows)
    missing = {row["reason"] for row in rows if row["reason"][1:] not in page}
    assert not missing


def test_the_page_of_measurements_has_every_result(site: Path) -> None:
    text = (site / "planning" / "measured.html").read_text()
    found = Results.load(RESULTS).results
    assert text.count("</tr>") == 1 + len(found)
    assert PAGE_MARK not in text


def test_pages_load_nothing_from_elsewhere(site: Path) -> None:
    for page in site.rglob("*.html"):
        loaded = re.findall(r'(?:src|<link[^>]* href)="(https?:[^"]+)', page.read_text())
        assert not loaded, page


def test_the_search_finds_every_message_of_an_error(site: Path) -> None:
    index = json.loads((site / "search" / "search_index.json").read_text())
    texts = html.unescape(" ".join(one["text"] for one in index["docs"]))
    for text in ("is not a row and a column of", "scheme: … is not one of", "is not in 0..…"):
        assert text in texts, text
    page = (site / "reference" / "errors.html").read_text()
    assert page.count("<li><code>") > 1000


def test_messages_of_the_troubleshooting_page_are_in_the_sources() -> None:
    page = (ROOT / "docs" / "guides" / "troubleshooting.md").read_text()
    rows = [line.split("|")[1] for line in page.splitlines() if line.startswith("| `")]
    parts = {part for row in rows for part in re.findall(r"`([^`]+)`", row)}
    parts -= {"topoopt: command not found", "sudo"}  # a shell says this
    assert len(parts) > 15
    sources = "".join(
        path.read_text(encoding="utf-8")
        for folder in ("torch_topoopt", "launcher", "csrc")
        for path in sorted((ROOT / folder).rglob("*.*"))
        if path.suffix in (".py", ".cc", ".h")
    )
    joined = re.sub(r'"\s*\n?\s*(?:<< |\+ )?f?"', "", sources)  # literals of several lines
    missing = {part for part in parts if part.removeprefix("-> ") not in joined}
    assert not missing
