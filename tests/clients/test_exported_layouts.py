"""Scripts of trainers with the configuration of a plan's layout: losses are those of gloo."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from client_jobs import (
    LIMIT_S,
    SCRIPTS,
    gloo_losses,
    link_differences,
    losses,
    topoopt_run,
    torchrun,
)
from support.plans import make_ring_plan

from torch_topoopt.launcher.main import main
from torch_topoopt.plan.layout import Layout

if TYPE_CHECKING:
    from pathlib import Path

NEEDED = "`make test-clients` installs what these tests need (requirements-clients.txt)"
SAME = 1e-6  # as in test_clients.py

pytestmark = [pytest.mark.exhaustive, pytest.mark.timeout(4 * LIMIT_S)]  # two or three jobs each


def exported(folder: Path, trainer: str, layout: Layout) -> list[str]:
    """Exports a plan with the layout to `folder`; returns the start of its run."""
    plan = replace(
        make_ring_plan(layout.accelerators),
        version=6,
        strategy_space="layouts",
        layout=layout,
        batch_size=layout.batch_size,
        micro_batches=layout.micro_batches,
    ).validate()
    plan.save(folder / "plan.json")
    assert main(["export", str(folder / "plan.json"), "--to", trainer, "-o", str(folder)]) == 0
    return ["topoopt", "run", "--plan", str(folder / "plan.json")]


def variables(folder: Path) -> dict[str, str]:
    lines = (folder / "accelerate.env").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines)


def test_a_script_of_accelerate_takes_the_variables(tmp_path: Path) -> None:
    pytest.importorskip("accelerate", reason=NEEDED)
    script = str(SCRIPTS / "accelerate_loop.py")
    planned = exported(tmp_path, "accelerate", Layout(data=4, micro_batch=3, micro_batches=2))
    chosen = ["--batch-size", "3"]
    environment = variables(tmp_path)
    gloo = gloo_losses(tmp_path / "gloo", *torchrun(4), script, *chosen, **environment)
    assert gloo[-1] == 96 / (4 * 3) / 2, "gradients of two batches are reduced at once"
    run = [*planned, "--take-over", "gloo", script, *chosen]
    ours, printed = losses(tmp_path / "run", *run, **environment)
    assert "the script asks for gloo and gets topoopt" in printed
    assert ours == pytest.approx(gloo, rel=SAME)


FSDP2 = Layout(
    data=4, sharding="parameters", state_shards=4, recompute="full", micro_batch=2, micro_batches=2
)
HYBRID = Layout(data=4, sharding="parameters", state_shards=2, reshard=False, micro_batch=2)


@pytest.mark.parametrize("layout", [FSDP2, HYBRID])
def test_accelerate_shards_a_llama(tmp_path: Path, layout: Layout) -> None:
    pytest.importorskip("accelerate", reason=NEEDED)
    pytest.importorskip("transformers", reason=NEEDED)
    script = str(SCRIPTS / "accelerate_llama.py")
    planned = exported(tmp_path, "accelerate", layout)
    environment = variables(tmp_path)
    gloo = gloo_losses(tmp_path / "gloo", *torchrun(4), script, **environment)
    assert len(set(gloo)) == 8, "it trains"
    ours, _ = losses(tmp_path / "run", *planned, "--take-over", "gloo", script, **environment)
    assert ours == pytest.approx(gloo, rel=SAME)


@pytest.mark.parametrize(
    ("name", "layout"),
    [
        ("hf_trainer", Layout(data=4, micro_batch=2, micro_batches=2)),
        ("trl_sft", replace(HYBRID, micro_batch=1, micro_batches=2)),
    ],
)
def test_trainers_of_hugging_face_take_the_arguments(
    tmp_path: Path, name: str, layout: Layout
) -> None:
    pytest.importorskip("accelerate", reason=NEEDED)
    pytest.importorskip("transformers" if name == "hf_trainer" else "trl", reason=NEEDED)
    script = str(SCRIPTS / f"{name}.py")
    planned = exported(tmp_path, "accelerate", layout)
    chosen = (tmp_path / "trainer.args").read_text().split()
    environment = variables(tmp_path)
    gloo = gloo_losses(tmp_path / "gloo", *torchrun(4), script, *chosen, **environment)
    other = gloo_losses(tmp_path / "one", *torchrun(4), script)
    assert gloo != other, "batches are those of the plan"
    run = [*planned, "--take-over", "gloo", script, *chosen]
    ours, _ = losses(tmp_path / "run", *run, **environment)
    assert ours == pytest.approx(gloo, rel=SAME)


@pytest.mark.parametrize("sharding", ["optimizer", "gradients", "parameters"])
def test_an_engine_of_deepspeed_takes_the_file(tmp_path: Path, sharding: str) -> None:
    """The bytes of its own trace are those that it sends."""
    pytest.importorskip("deepspeed", reason=NEEDED)
    layout = Layout(data=2, sharding=sharding, state_shards=2, micro_batch=2, micro_batches=2)
    exported(tmp_path, "deepspeed", layout)
    script = [str(SCRIPTS / "deepspeed_engine.py"), "--config", str(tmp_path / "deepspeed.json")]
    cpu = {"DS_ACCELERATOR": "cpu"}
    chosen = ["--dist-backend", "gloo"]
    gloo = gloo_losses(tmp_path / "gloo", *torchrun(2), *script, *chosen, **cpu)
    run = [*topoopt_run(2, 1), "--bandwidth", "500Mbps"]
    ours, printed = losses(tmp_path / "run", *run, *script, **cpu)
    assert ours == pytest.approx(gloo, rel=SAME)
    assert len(set(gloo)) == 16, "it trains"
    assert max(map(abs, link_differences(printed))) < 1
