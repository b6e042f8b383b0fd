"""Scripts of other authors' trainers: losses are those of gloo, and bytes those of the trace."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from client_jobs import LIMIT_S, SCRIPTS, link_differences, losses, topoopt_run, torchrun

if TYPE_CHECKING:
    from pathlib import Path

SAME = 1e-6  # as in test_clients.py

pytestmark = [pytest.mark.exhaustive, pytest.mark.timeout(4 * LIMIT_S)]  # two to four jobs each


def test_the_fine_tuning_of_trl(tmp_path: Path) -> None:
    reason = "`make test-clients` installs TRL (requirements-clients.txt)"
    pytest.importorskip("trl", reason=reason)
    script = str(SCRIPTS / "trl_sft.py")
    gloo, _ = losses(tmp_path / "gloo", *torchrun(2), script)
    assert len(set(gloo)) == 8, "it trains"
    run = [*topoopt_run(2, 1), "--bandwidth", "500Mbps", "--take-over", "gloo"]
    ours, printed = losses(tmp_path / "run", *run, script)
    assert ours == pytest.approx(gloo, rel=SAME)
    assert max(map(abs, link_differences(printed))) < 1


def test_a_sharded_checkpoint_goes_on_with_other_shards(tmp_path: Path) -> None:
    """Saved by four shards, loaded by two replicas of two."""
    script = str(SCRIPTS / "fsdp2_checkpoint.py")
    saved = str(tmp_path / "gloo" / "saved")
    run = [*topoopt_run(4, 2), "--bandwidth", "500Mbps"]
    for folder, replicas, checkpoint in (("", "1", "none"), ("again", "2", saved)):
        chosen = [script, "--replicas", replicas, "--checkpoint", checkpoint]
        backend = ["--dist-backend", "gloo"]
        gloo, _ = losses(tmp_path / folder / "gloo", *torchrun(4), *chosen, *backend)
        assert len(set(gloo)) == 8, "it trains"
        ours, printed = losses(tmp_path / folder / "run", *run, *chosen)
        assert ours == pytest.approx(gloo, rel=SAME)
        assert max(map(abs, link_differences(printed))) < 1
