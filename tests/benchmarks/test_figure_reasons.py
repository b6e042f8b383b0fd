"""Reasons of the kept table that a formula or a small computation can check."""

from __future__ import annotations

import json
from statistics import mean
from typing import Any

import pytest
from testbed import training

from figures.cell import REPOSITORY
from figures.cells import data_parallel, networks
from figures.figure import NEAR

TABLE: list[dict[str, Any]] = json.loads(
    (REPOSITORY / "figures" / "table.json").read_text(encoding="utf-8")
)["rows"]
GBPS = (10.0, 25.0, 40.0, 100.0, 200.0)


def reasons_of(figure: str, quantity: str) -> list[str]:
    found = [
        row["reason"]
        for row in TABLE
        if row["figure"] == figure and row["quantity"].startswith(quantity) and row["reason"]
    ]
    assert found
    return found


def test_time_to_accuracy_is_the_papers_if_convolutions_run_in_fp32() -> None:
    tf32, fp32 = (training.step_ratio(12, 4, units) for units in ("tf32", "fp32"))
    assert fp32 == pytest.approx(2.0, rel=NEAR)
    assert tf32 > (1 + NEAR) * 2.0
    for reason in reasons_of("20", "time to 90 % accuracy, Switch 25"):
        assert f"{tf32:.2f}" in reason
        assert f"{fp32:.2f}" in reason
        assert "33%" in reason, "(4 / 2 - 1) / (4 - 1) of a step"


def test_a_step_ratio_lies_between_no_communication_and_nothing_else() -> None:
    ratios = [training.step_ratio(12, links, "tf32") for links in (1, 2, 4, 8)]
    assert ratios[0] == 1
    assert ratios == sorted(ratios)
    assert all(ratio < links for ratio, links in zip(ratios[1:], (2, 4, 8), strict=True))


@pytest.mark.parametrize(("figure", "model"), [("11a", "candle"), ("11b", "vgg")])
def test_with_data_parallelism_the_fat_tree_is_slower_than_with_searched_strategies(
    figure: str, model: str
) -> None:
    rows = [
        data_parallel.on_networks(model=model, servers=128, degree=4, gbps=gbps, seed=0)
        for gbps in GBPS
    ]
    for tree in ("Fat-tree, Table 2", "Fat-tree, d B' = B"):
        whole = mean(row[tree] / row["TopoOpt"] for row in rows)
        kept = [row for row in TABLE if row["figure"] == figure and tree in row["mode"]]
        assert kept
        for row in kept:
            assert whole > row["ours"], row["mode"]
            assert row["within"] or f"{whole:.2f}" in row["reason"]
    assert mean(row["TopoOpt"] / row["Ideal Switch"] for row in rows) == pytest.approx(1, rel=0.01)


def test_all_to_all_over_all_reduce_is_the_papers_with_8_bytes_for_an_activation() -> None:
    found = {}
    for size in (networks.FP32_BYTES, networks.PAPER_BYTES):
        _, _, _, asked = networks.section_5_4(128, 4, 2048, activation_bytes=size)
        found[size] = networks.all_to_all_over_all_reduce(asked)
    assert found[8] == pytest.approx(2 * found[4])
    assert found[8] == pytest.approx(0.8, rel=NEAR)
    assert found[4] < (1 - NEAR) * 0.8
    for reason in reasons_of("13", "bandwidth tax, d = 4, batch 2048"):
        if "Appendix D" in reason:
            assert f"{found[4]:.3f}" in reason
            assert f"{found[8]:.3f}" in reason


def test_a_pair_of_servers_exchanges_both_passes_of_one_table() -> None:
    _, _, _, asked = networks.section_5_4(128, 4, 128, activation_bytes=8)
    sizes = {pair.size_bytes for pair in asked.pairs}
    assert sizes == {2 * 4 * 128 * 128 * 8}, "passes, accelerators, samples, columns, bytes"
