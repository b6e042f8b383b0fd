"""Scripts of other authors' trainers: losses are those of gloo, and bytes those of the trace."""

from __future__ import annotations

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

if TYPE_CHECKING:
    from pathlib import Path

SAME = 1e-6  # as in test_clients.py

pytestmark = [pytest.mark.exhaustive, pytest.mark.timeout(4 * LIMIT_S)]  # two to four jobs each


NEEDED = "`make test-clients` installs what this test needs (requirements-clients.txt)"


def check(
    folder: Path, servers: int, *command: str, take_over: bool = False, **variables: str
) -> None:
    """Trains with gloo under torchrun, then under `topoopt run`.

    A script that takes a backend names topoopt by default; others are taken over.
    """
    chosen = [] if take_over else ["--dist-backend", "gloo"]
    gloo = gloo_losses(folder / "gloo", *torchrun(servers), *command, *chosen, **variables)
    assert len(set(gloo)) == len(gloo), "it trains"
    run = [*topoopt_run(servers, min(servers - 1, 2)), "--bandwidth", "500Mbps"]
    if take_over:
        run += ["--take-over", "gloo"]
    ours, printed = losses(folder / "run", *run, *command, **variables)
    assert ours == pytest.approx(gloo, rel=SAME)
    assert max(map(abs, link_differences(printed))) < 1


def test_the_fine_tuning_of_trl(tmp_path: Path) -> None:
    pytest.importorskip("trl", reason=NEEDED)
    check(tmp_path, 2, str(SCRIPTS / "trl_sft.py"), take_over=True)


def test_a_sharded_checkpoint_goes_on_with_other_shards(tmp_path: Path) -> None:
    """Saved by four shards, loaded by two replicas of two."""
    script = str(SCRIPTS / "fsdp2_checkpoint.py")
    check(tmp_path, 4, script, "--checkpoint", "none")
    saved = str(tmp_path / "gloo" / "saved")
    check(tmp_path / "again", 4, script, "--replicas", "2", "--checkpoint", saved)


@pytest.mark.parametrize(
    ("pattern", "servers"),
    [
        *(("tcp-store", 2), ("rendezvous", 2), ("file-store", 2)),
        *(("local-sgd", 4), ("power-sgd", 2), ("zero", 4), ("join", 4), ("pipeline", 4)),
    ],
)
def test_own_stores_hooks_optimizers_and_stages_are_traced(
    tmp_path: Path, pattern: str, servers: int
) -> None:
    """PowerSGD has two servers, because the sum of four numbers in 16 bits depends on the order."""
    script = str(SCRIPTS / "communication_patterns.py")
    check(tmp_path, servers, script, "--pattern", pattern)


def test_a_pipeline_of_deepspeed(tmp_path: Path) -> None:
    pytest.importorskip("deepspeed", reason=NEEDED)
    check(tmp_path, 2, str(SCRIPTS / "deepspeed_pipeline.py"), DS_ACCELERATOR="cpu")


def test_replicas_of_torchft(tmp_path: Path) -> None:
    torchft = pytest.importorskip("torchft.coordination", reason=NEEDED)
    lighthouse = torchft.LighthouseServer(bind="127.0.0.1:0", min_replicas=4)
    try:
        here = f"http://127.0.0.1:{lighthouse.address().rpartition(':')[2]}"
        check(tmp_path, 4, str(SCRIPTS / "torchft_ddp.py"), TORCHFT_LIGHTHOUSE=here)
    finally:
        lighthouse.shutdown()
