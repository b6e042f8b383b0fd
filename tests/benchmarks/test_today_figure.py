"""Figure today: GPT and a mixture of experts on every architecture."""

from __future__ import annotations

import pytest

from figures.cells.today import on_every_network
from torch_topoopt.architectures import ARCHITECTURES


@pytest.mark.parametrize(
    ("model", "micro_batches", "priced", "strategy"),
    [("gpt:tiny", 4, 6, "stages"), ("moe:tiny", 1, 60, "experts")],
)
def test_every_architecture_gets_the_fastest_of_what_experts_try(
    model: str, micro_batches: int, priced: int, strategy: str
) -> None:
    row = on_every_network(
        **{"model": model, "servers": 4, "degree": 2, "gbps": 100.0},
        **{"micro_batches": micro_batches, "priced": priced, "max_transfers": 100_000, "seed": 0},
    )
    times, chosen = row["iteration_s"], row["strategy"]
    names = {"TopoOpt, paper", "TopoOpt, best", *ARCHITECTURES} - {"topoopt"}
    assert set(times) | set(row["impossible"]) == names
    assert not set(times) & set(row["impossible"])
    assert set(chosen) == set(times)
    assert set(chosen.values()) <= set(row["tried"])
    assert any(strategy in name for name in row["tried"])
    assert times["TopoOpt, best"] <= times["TopoOpt, paper"]
    # nothing is faster than a switch that never blocks
    assert times["ideal-switch"] <= min(times.values()) * (1 + 1e-3)
