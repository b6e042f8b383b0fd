"""Figures 13 and 17 of HammingMesh: one small cell, and what is made of the rows."""

from __future__ import annotations

from typing import Any

import pytest
from matplotlib.figure import Figure as Canvas

from figures.cells.hx_packets import all_reduce
from figures.registry import all_figures


def test_longer_messages_come_nearer_to_the_peak_by_both_algorithms() -> None:
    shared: dict[str, Any] = {"network": "Hx4Mesh", "size": "small", "level": "flow", "seed": 0}
    shares = {
        algorithm: all_reduce(algorithm=algorithm, message_bytes=[1 << 24, 1 << 34], **shared)
        for algorithm in ("rings", "torus")
    }
    for short, long in (row["shares"] for row in shares.values()):
        assert short < long == pytest.approx(1, abs=0.01)
    assert shares["torus"]["shares"][0] > 3 * shares["rings"]["shares"][0]


def test_the_figure_has_a_panel_for_each_cluster_and_the_papers_numbers_for_rings() -> None:
    figure = all_figures()["hx-13"]
    cells = figure.cells(False)
    parameters = [cell.parameters for cell in cells]
    results = [(p, {"shares": [0.5] * len(p["message_bytes"])}) for p in parameters]
    made = figure.make(results, False)
    canvas = Canvas()
    made.draw(canvas)
    assert [axes.get_title()[:9] for axes in canvas.axes] == ["Figure 17", "Figure 13"]
    papers = [q for q in made.quantities if q.paper is not None]
    assert len(papers) == 16  # eight networks, two clusters
    assert all("by rings" in q.quantity and "16384 MiB" in q.quantity for q in papers)
