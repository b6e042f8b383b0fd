"""benchmarks/measured_steps.py on rows of its own."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from pathlib import Path

import pytest
from support.limits import limit_s

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "measured_steps.py"
ROW = {
    "source": "a page",
    "model": "decoder",
    "layers": "4",
    "hidden": "256",
    "ffn": "1024",
    "heads": "4",
    "vocabulary": "1024",
    "sequence": "256",
    "gpus": "8",
    "gpu": "H100 80GB",
    "gpus_per_node": "8",
    "tp": "1",
    "pp": "1",
    "micro_batch": "2",
    "global_batch_sequences": "16",
    "zero_or_fsdp": "FSDP FULL_SHARD",
    "recompute": "none",
    "precision": "bf16",
    "step_seconds": "0.5",
    "memory_gib": "1.5",
    "notes": "",
}


def written(path: Path, rows: list[dict[str, str]]) -> Path:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return path


def predicted(
    tmp_path: Path, rows: list[dict[str, str]], *options: str | Path
) -> dict[str, object]:
    path = written(tmp_path / "rows.csv", rows)
    done = subprocess.run(
        [sys.executable, SCRIPT, "--rows", path, "--json", *options],
        capture_output=True,
        text=True,
        timeout=limit_s(120),
        check=True,
    )
    found: dict[str, object] = json.loads(done.stdout)
    return found


def test_each_row_has_a_prediction_or_a_reason(tmp_path: Path) -> None:
    rows = [
        ROW,
        {**ROW, "tp": "2", "step_seconds": ""},
        {**ROW, "sequence": ""},
        {**ROW, "gpu": "abacus"},
        {**ROW, "global_batch_sequences": "9"},
    ]
    found = predicted(tmp_path, rows)["rows"]
    assert isinstance(found, list)
    assert [row["row"] for row in found] == [0, 1, 2, 3, 4]
    first, unmeasured = found[:2]
    assert first["ratio"] == pytest.approx(first["predicted_step_seconds"] / 0.5)
    assert first["memory_gib"] > 0
    assert first["fits"] is True
    assert first["reason"] is None
    assert unmeasured["predicted_step_seconds"] > 0
    assert unmeasured["ratio"] is None
    for row, word in zip(found[2:], ("sequence", "abacus", "9"), strict=True):
        assert row["predicted_step_seconds"] is None
        assert word in row["reason"]


def test_more_work_takes_longer(tmp_path: Path) -> None:
    rows = [ROW, {**ROW, "micro_batch": "4", "global_batch_sequences": "32"}]
    first, second = predicted(tmp_path, rows)["rows"]  # type: ignore[misc]
    assert second["predicted_step_seconds"] > first["predicted_step_seconds"]
    assert second["memory_gib"] > first["memory_gib"]


def test_failed_layouts_are_predicted_with_the_model_of_the_rows(tmp_path: Path) -> None:
    layout = {"gpus": "8", "micro_batch": "1", "grad_accum": "1", "dp": "8", "pp": "1", "tp": "1"}
    failed = [
        {"model": "decoder", **layout, "zero_stage": "1"},
        {"model": "decoder", **layout, "zero_stage": "0", "micro_batch": "65536"},
    ]
    options = "--failed", written(tmp_path / "failed.csv", failed)
    found = predicted(tmp_path, [ROW, {**ROW, "recompute": ""}], *options)
    assert (found["failed"], found["failed_but_predicted_to_fit"]) == (2, 1)
    assert [row["fits"] for row in found["rows"]] == [True, None]  # type: ignore[attr-defined]
