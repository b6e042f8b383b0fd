"""`topoopt run` of a script whose plan has a layout."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.refusals import named

from torch_topoopt.plan import Plan

EXAMPLE = Path(__file__).parents[3] / "examples" / "llama.py"
STEPS = 5


def compare(launcher: Any, folder: Path, *options: str) -> Plan:
    """Runs the example; measured bytes of an iteration are those of its plan."""
    done = launcher.run(
        "run",
        *options,
        *("--bandwidth", "200Mbps", "--json", "--run-dir", str(folder / "run")),
        *(str(EXAMPLE), "--steps", str(STEPS)),
        TOPOOPT_ALGORITHM="multi_ring",
    )
    assert done.returncode == 0, done.stderr
    plan = Plan.load(folder / "run" / "plan.json")
    sent = {
        tuple(link[name] for name in ("source", "source_port", "target", "target_port")): link[
            "iteration_bytes"
        ]
        for link in json.loads(done.stdout)["links"]
    }
    predicted = {
        (link.source, link.source_port, link.target, link.target_port): size
        for link, size in zip(plan.network.links, plan.prediction.link_bytes, strict=True)
    }
    assert any(predicted.values())
    # the norm of the gradients is a few bytes more
    assert sent == {link: pytest.approx(size, rel=0.01, abs=64) for link, size in predicted.items()}
    return plan


@pytest.mark.parametrize(
    "options",
    [
        ("--servers", "4", "--degree", "2", "--layout", "sharding=parameters,micro_batch=8"),
        (
            *("--servers", "2", "--degree", "1", "--accelerators-per-server", "2"),
            *("--layout", "sharding=parameters,state_shards=2,micro_batch=4,recompute=full"),
        ),
        (
            *("--servers", "2", "--degree", "1", "--accelerators-per-server", "2"),
            *("--layout", "pipeline=2,sharding=parameters,micro_batch=4"),
        ),
        (
            *("--servers", "2", "--degree", "1", "--accelerators-per-server", "2"),
            *("--layout", "tensor=2,sharding=parameters,micro_batch=4"),
        ),
    ],
)
def test_links_carry_what_the_plan_of_a_layout_predicts(
    options: tuple[str, ...], launcher: Any, tmp_path: Path
) -> None:
    plan = compare(launcher, tmp_path, *options, "--no-measure-steps")
    assert plan.layout is not None
    assert plan.layout.sharding == "parameters"


def test_a_given_plan_of_a_layout_is_executed(launcher: Any, tmp_path: Path) -> None:
    made = launcher.run(
        *("plan", str(EXAMPLE), "--servers", "2", "--degree", "1", "--bandwidth", "200Mbps"),
        *("--layout", "sharding=gradients,micro_batch=8", "-o", str(tmp_path / "plan.json")),
    )
    assert made.returncode == 0, made.stderr
    plan = compare(launcher, tmp_path, "--plan", str(tmp_path / "plan.json"))
    assert plan.layout is not None
    assert plan.layout.micro_batches == 2


def test_a_schedule_that_cannot_be_executed_is_refused(launcher: Any) -> None:
    layout = "pipeline=2,micro_batch=4,recompute=full,schedule=zero-bubble"
    done = launcher.run("run", "--servers", "2", "--degree", "1", "--layout", layout, str(EXAMPLE))
    assert done.returncode == 2
    assert named(done.stderr, "recompute", "full", "zero-bubble")
