"""The report page under the hands of its reader: tabs, keys, pointer, sliders, a phone."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest
from report_page import ANALYSED, SECTIONS
from report_runs import make_events, make_plan, write_run
from test_report_browser import CHROMIUM
from test_work_section import REDUCE, rank_event

from torch_topoopt.report import write_comparison, write_report

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

playwright = pytest.importorskip("playwright.sync_api")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed")
LIMIT_MS = 20_000


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    with playwright.sync_playwright() as engine:
        browser = engine.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of a run of 12 servers whose classifier is on half of them."""
    folder = tmp_path_factory.mktemp("report")
    plan = make_plan(12, (1, 5), "full")
    steps = [
        {"event": "step", "time_s": 10.0 + i, "iteration": 10 * i, "step_s": 0.1 + 0.002 * (i % 5),
         "loss": None}
        for i in range(1, 21)
    ]  # fmt: skip
    ranks = [rank_event(rank, 0.09 if rank == 5 else 0.07) for rank in range(12)]
    events = [*make_events(plan), *steps, *ranks, REDUCE]
    return write_report(write_run(folder / "run", plan, events))


@pytest.fixture
def opened(chromium: Any) -> Iterator[Callable[..., Any]]:
    """Opens a page in a window of its own; at the end nothing was complained of, nor asked for."""
    complaints: list[str] = []
    asked: list[str] = []
    pages: set[str] = set()
    contexts = []

    def open_page(path: Path, width: int = 1200, **options: Any) -> Any:
        context = chromium.new_context(viewport={"width": width, "height": 800}, **options)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(LIMIT_MS)
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", lambda request: asked.append(request.url.partition("#")[0]))
        page.goto(path.as_uri())
        assert set(asked) == {path.as_uri()}
        asked.clear()
        pages.add(path.as_uri())
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert complaints == []
    assert set(asked) <= pages


def _is_selected(tab: Any) -> None:
    playwright.expect(tab).to_have_attribute("aria-selected", "true", timeout=LIMIT_MS)


def _visible_figures(page: Any) -> int:
    selector = "[role=tabpanel]:not([hidden]) [data-figure]"
    page.wait_for_function(
        f"[...document.querySelectorAll('{selector}')].every(f => f.children.length)"
    )
    return int(page.locator(selector).count())


_CUT_CAPTIONS = """[...document.querySelectorAll("caption")].filter((caption) => {
    const text = document.createRange();
    text.selectNodeContents(caption);
    return text.getBoundingClientRect().right > window.innerWidth;
}).map((caption) => caption.textContent)"""


@pytest.mark.parametrize("width", [1200, 390])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_tab_opens_draws_its_figures_and_fits_the_window(
    written: Path, opened: Callable[..., Any], width: int, scheme: str
) -> None:
    page = opened(written, width, color_scheme=scheme)
    figures = 0
    for tab in page.get_by_role("tab").all():
        tab.click()
        _is_selected(tab)
        assert page.locator("[role=tabpanel]:visible").count() == 1
        figures += _visible_figures(page)
        wider = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
        assert page.evaluate(wider) <= 0
        assert page.evaluate(_CUT_CAPTIONS) == [], "also above tables that scroll"
    assert figures == 14
    every = [*SECTIONS, *ANALYSED]
    assert {s.get_attribute("id") for s in page.locator("section, header").all()} == {
        *every,
        "ranks",
        "collectives",
    }


def test_each_question_is_answered_within_two_clicks(
    written: Path, opened: Callable[..., Any]
) -> None:
    page = opened(written)
    for target in ("slowest", "ports", "splits", "pull"):
        page.get_by_role("tab", name="Overview").click()
        page.locator(f"a.answer[href='#{target}']").click()
        playwright.expect(page.locator(f"#{target}")).to_be_in_viewport(timeout=LIMIT_MS)


def test_the_keyboard_reaches_tabs_and_moves_between_them(
    written: Path, opened: Callable[..., Any]
) -> None:
    page = opened(written)
    page.keyboard.press("Tab")
    names = []
    for key in ("ArrowRight", "End", "ArrowRight", "ArrowLeft", "Home"):
        page.keyboard.press(key)
        names.append(page.evaluate("document.activeElement.textContent"))
    assert names == ["Run", "Failures", "Overview", "Failures", "Overview"]
    page.keyboard.press("Tab")  # into the panel: the first answer
    assert page.evaluate("document.activeElement.className") == "answer"
    page.keyboard.press("Enter")
    playwright.expect(page.locator("#slowest")).to_be_in_viewport(timeout=LIMIT_MS)


def test_an_address_opens_the_tab_that_holds_it(written: Path, opened: Callable[..., Any]) -> None:
    page = opened(written)
    page.goto(f"{written.as_uri()}#pull")
    page.reload()
    _is_selected(page.get_by_role("tab", name="Failures"))


def test_the_network_has_three_layouts_and_hides_rings(
    written: Path, opened: Callable[..., Any]
) -> None:
    page = opened(written)
    page.get_by_role("tab", name="Network").click()
    shown = page.locator("#topology .topology")
    playwright.expect(shown.locator(".server")).to_have_count(12, timeout=LIMIT_MS)
    assert shown.locator(".hit").count() == 24
    drawn = set()
    for name in ("Circular", "Force", "Racks"):
        page.get_by_role("button", name=name, exact=True).click()
        drawn.add(shown.locator(".cable").first.get_attribute("d"))
    assert len(drawn) == 3
    page.get_by_role("button", name="±1 ·").click()
    assert shown.locator(".hit").count() == 12
    page.get_by_label("Show server").fill("3")
    assert page.locator("#topology .picked li").count() == 4
    page.locator("#topology .picked button").first.click()
    page.get_by_role("link", name="what if it is pulled?").click()
    _is_selected(page.get_by_role("tab", name="Failures"))
    assert page.get_by_label("Cable", exact=True).input_value() == "2:0 – 3:1"


def test_sliders_move_the_predicted_iteration_as_the_data_say(
    written: Path, opened: Callable[..., Any]
) -> None:
    page = opened(written)
    page.get_by_role("tab", name="What if").click()
    prediction = page.locator("#what-if output.big")
    before = prediction.inner_text()
    data = page.evaluate("JSON.parse(document.getElementById('data').textContent).runs[0].what_if")
    (own,) = [entry for entry in data["degrees"] if entry["degree"] == 4]
    whole_s = own["iteration_s"][2][data["batches"].index(128)]
    assert before == f"{whole_s * 1000:.0f} ms"
    page.get_by_role("slider", name="Bandwidth of a link").press("Home")
    slow_s = own["iteration_s"][0][data["batches"].index(128)]
    assert prediction.inner_text() == f"{slow_s:.2f} s"
    assert "250 Mb/s" in page.locator("#what-if").inner_text()
    page.get_by_role("button", name="Back to the plan").click()
    assert prediction.inner_text() == before


def test_a_pulled_cable_shows_the_way_around_it(written: Path, opened: Callable[..., Any]) -> None:
    page = opened(written)
    page.goto(f"{written.as_uri()}#pull")
    page.reload()
    page.get_by_label("Cable", exact=True).fill("0:0 – 1:1")
    text = page.locator("#pull [aria-live]").inner_text()
    assert "Predicted iteration" in text
    ways = [way for way in text.splitlines() if way.startswith("0 → ") and way.endswith(" → 1")]
    assert len(ways) == 1
    stops = [int(stop) for stop in ways[0].split(" → ")]
    assert all((b - a) % 12 in (1, 5, 7, 11) for a, b in pairwise(stops))
    assert (0, 1) not in pairwise(stops)


def test_two_reports_stand_side_by_side(
    written: Path, tmp_path: Path, opened: Callable[..., Any]
) -> None:
    plan = make_plan(5, (1, 2))
    plan.save(tmp_path / "five.json")
    target = write_comparison(tmp_path / "five.json", written.parent, tmp_path / "both.html")
    page = opened(target, 390)
    assert "12 × 4" in page.locator("#values").inner_text()
    for tab in page.get_by_role("tab").all():
        tab.click()
        _visible_figures(page)
    page.get_by_role("tab", name="Network").click()
    playwright.expect(page.locator("#networks .topology")).to_have_count(2, timeout=LIMIT_MS)
