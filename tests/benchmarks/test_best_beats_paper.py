"""Mode best against mode paper in the kept table of figures."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

_TABLE = Path(__file__).resolve().parents[2] / "figures" / "table.json"
_COMPARED = ("11", "12", "13", "14", "15", "27")
_ROUTED = {"dlrm", "ncf"}  # models whose traffic is relayed
_OF_LEVELS = "packet level over flow level"  # of the simulators, not of the networks

_Key = tuple[str, str, str, str]


def _pairs() -> dict[_Key, tuple[float, float]]:
    """By row: mode paper and mode best, so that less is better."""
    found: dict[_Key, dict[str, float]] = {}
    for row in json.loads(_TABLE.read_text(encoding="utf-8"))["rows"]:
        mode, _, tree = row["mode"].partition("; ")
        figure = row["figure"].rstrip("abcdef")
        if figure in _COMPARED and not row["quantity"].startswith(_OF_LEVELS):
            better = -1 if row["quantity"].startswith("Fat-tree / TopoOpt") else 1
            key = (row["figure"], row["quantity"], row["model"], tree)
            found.setdefault(key, {})[mode] = better * row["ours"]
    return {k: (v["paper"], v["best"]) for k, v in found.items() if v.keys() >= {"paper", "best"}}


@pytest.mark.parametrize("key", _pairs(), ids=lambda key: " ".join(filter(None, key)))
def test_mode_best_is_never_worse_and_better_where_paths_count(key: _Key) -> None:
    figure, _, model, _ = key
    paper, best = _pairs()[key]
    assert best <= paper
    if model in _ROUTED or figure in ("14", "15"):
        assert best < paper


def test_every_compared_figure_has_rows_of_both_modes() -> None:
    assert {key[0].rstrip("abcdef") for key in _pairs()} == set(_COMPARED)
