"""Software of other authors, and scripts as its users write them: losses are those of gloo.

Each runs with gloo and with "topoopt" under torchrun, and under `topoopt run`, unmodified. What
names gloo by itself is taken over on request (TOPOOPT_TAKE_OVER, --take-over). Ray Train starts its
workers itself, without torchrun and `topoopt run`.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
from client_jobs import LIMIT_S, SCRIPTS, gloo_losses, losses, run, topoopt_run, torchrun

if TYPE_CHECKING:
    from pathlib import Path

NEEDED = "`make test-clients` installs what these tests need (requirements-clients.txt)"
RANKS = 4
# Relative. Sums of four numbers depend on their order in the last of a float32's 24 bits (6e-8),
# and a few steps of training carry that on.
SAME = 1e-6
TAKEN_OVER = "the script asks for gloo and gets topoopt"
UNUSED = "the planned links carried nothing"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(4 * LIMIT_S)]  # three jobs each


@pytest.mark.exhaustive
def test_a_recommendation_model_that_exchanges_embeddings(tmp_path: Path) -> None:
    script = str(SCRIPTS / "dlrm_like.py")
    gloo = gloo_losses(tmp_path / "gloo", *torchrun(RANKS), script, "--dist-backend=gloo")
    assert len(set(gloo)) == 6, "it trains"
    ours, printed = losses(tmp_path / "ours", *torchrun(RANKS), script, "--dist-backend=topoopt")
    assert "1 server, 4 ranks" in printed
    assert ours == pytest.approx(gloo, rel=SAME)
    options = ["--dist-backend=topoopt"]
    planned, printed = losses(tmp_path / "run", *topoopt_run(RANKS, 2), script, *options)
    assert "Measured bytes per link" in printed
    assert UNUSED not in printed
    assert planned == pytest.approx(gloo, rel=SAME)


@pytest.mark.exhaustive
def test_the_trainer_of_hugging_face(tmp_path: Path) -> None:
    pytest.importorskip("accelerate", reason=NEEDED)
    pytest.importorskip("transformers", reason=NEEDED)
    check("hf_trainer", tmp_path, ["--take-over", "gloo"], TAKEN_OVER)


@pytest.mark.exhaustive
def test_a_llama_of_transformers_with_operators_on_some_servers(tmp_path: Path) -> None:
    pytest.importorskip("transformers", reason=NEEDED)
    script = str(SCRIPTS / "placed_llama.py")
    alone, _ = losses(tmp_path / "alone", script, "--alone")
    run = [*topoopt_run(RANKS, 2), "--bandwidth", "10Mbps", "--strategy-space", "full", script]
    placed, printed = losses(tmp_path / "run", *run)
    assert placed == pytest.approx(alone, rel=1e-5)
    assert re.search(r"[1-9]\d* on one server", printed), printed


@pytest.mark.exhaustive
def test_lightning(tmp_path: Path) -> None:
    """It takes the default backend of the device, and that is "topoopt" under `topoopt run`."""
    pytest.importorskip("lightning", reason=NEEDED)
    check("lightning_fit", tmp_path, [], "distributed_backend=topoopt")


def check(name: str, folder: Path, options: list[str], said: str) -> None:
    """A script that names no backend, so that its library chooses one: gloo under torchrun.

    `options` are those that `topoopt run` needs for it, where `said` is among what is printed.
    """
    script = str(SCRIPTS / f"{name}.py")
    gloo = gloo_losses(folder / "gloo", *torchrun(RANKS), script)
    assert len(set(gloo)) >= 2, "it trains"
    ours, printed = losses(folder / "ours", *torchrun(RANKS), script, TOPOOPT_TAKE_OVER="gloo")
    assert TAKEN_OVER in printed
    assert ours == pytest.approx(gloo, rel=SAME)
    planned, printed = losses(folder / "run", *topoopt_run(RANKS, 2), *options, script)
    assert said in printed
    assert UNUSED not in printed
    assert planned == pytest.approx(gloo, rel=SAME)


@pytest.mark.exhaustive
def test_the_own_test_script_of_accelerate(tmp_path: Path) -> None:
    """It compares trained weights with those of one process by itself, to 1e-6, and says so.

    Two ranks: one of its tests splits a tensor of two rows among the ranks and expects the second
    row on every rank but the first, so that with four ranks it fails with any backend.
    """
    pytest.importorskip("accelerate", reason=NEEDED)
    script = ["-m", "accelerate.test_utils.scripts.test_script"]
    gloo = _passed(run(tmp_path / "gloo", *torchrun(2), *script))
    assert len([line for line in gloo if line.startswith("Training yielded the same")]) == 4
    printed = run(tmp_path / "ours", *torchrun(2), *script, TOPOOPT_TAKE_OVER="gloo")
    assert TAKEN_OVER in printed
    assert _passed(printed) == gloo
    printed = run(tmp_path / "run", *topoopt_run(2, 1), "--take-over", "gloo", *script)
    assert TAKEN_OVER in printed
    assert UNUSED not in printed
    assert _passed(printed) == gloo


def _passed(printed: str) -> list[str]:
    """The tests that accelerate's script has begun, and its words on those that passed."""
    return re.findall(
        r"\*\*[^*]+\*\*|(?:Non-s|S)huffled(?: central)? dataloader passing"
        r"|All rng are properly synched|Training yielded the same results[a-zA-Z ]+batch split",
        printed,
    )


@pytest.mark.exhaustive
def test_ray_train(tmp_path: Path) -> None:
    """Ray starts its workers itself, so that neither torchrun nor `topoopt run` starts them."""
    pytest.importorskip("ray", reason=NEEDED)
    script = str(SCRIPTS / "ray_train.py")
    gloo, _ = losses(tmp_path / "gloo", script, "--dist-backend=gloo")
    assert len(set(gloo)) == 5, "four losses and the sum of the weights"
    ours, _ = losses(tmp_path / "ours", script, "--dist-backend=topoopt")
    assert ours == pytest.approx(gloo, rel=SAME)
