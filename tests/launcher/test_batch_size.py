"""The meaning of a batch size to each verb: of one accelerator, or of all together."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from support.refusals import named

from torch_topoopt.launcher.main import main
from torch_topoopt.models import MODELS
from torch_topoopt.op_graph import OpGraph
from torch_topoopt.plan import Plan

if TYPE_CHECKING:
    from pathlib import Path

CLUSTER = ("--servers", "8", "--degree", "2", "--bandwidth", "25Gbps")
QUICK = ("--rounds", "1", "--evaluations", "5")
SCRIPT = """
import torch
def build_model():
    return torch.nn.Linear(8, 8)
def example_batch(batch_size=24):
    return torch.zeros(batch_size, 8)
"""


def planned(tmp_path: Path, *arguments: str) -> Plan:
    output = tmp_path / "plan.json"
    options = (*CLUSTER, *QUICK, "--no-failures", "-o", str(output), "--json")
    assert main(["plan", *arguments, *options]) == 0
    return Plan.load(output)


def test_a_shipped_models_batch_is_that_of_each_accelerator(tmp_path: Path) -> None:
    own = MODELS["bert"].SIZES["tiny"].batch_size
    assert planned(tmp_path, "bert:tiny").batch_size == 8 * own
    assert planned(tmp_path, "bert:tiny", "--batch-size", "16").batch_size == 16


def test_a_files_batch_is_that_of_all_together(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    assert planned(tmp_path, str(script)).batch_size == 24
    assert planned(tmp_path, str(script), "--batch-size", "32").batch_size == 32


def test_a_saved_graph_has_its_batch_and_takes_another(tmp_path: Path) -> None:
    saved = tmp_path / "bert.opgraph.json"
    assert main(["profile", "bert:tiny", "--batch-size", "16", "-o", str(saved), "--json"]) == 0
    assert planned(tmp_path, str(saved)).batch_size == 16
    scaled = planned(tmp_path, str(saved), "--batch-size", "32")
    fresh = planned(tmp_path, "bert:tiny", "--batch-size", "32")
    assert scaled.batch_size == 32
    assert scaled.prediction.iteration_s == pytest.approx(fresh.prediction.iteration_s, rel=0.01)


@pytest.mark.parametrize(
    ("options", "field"),
    [
        (("--batch-size", "30"), "--batch-size"),
        (("--sequence", "8"), "--sequence"),
        (("--task", "causal-lm"), "--task"),
    ],
)
def test_a_saved_graph_refuses_what_it_cannot_be(
    options: tuple[str, str], field: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    saved = tmp_path / "bert.opgraph.json"
    assert main(["profile", "bert:tiny", "-o", str(saved), "--json"]) == 0
    capsys.readouterr()
    assert main(["plan", str(saved), *CLUSTER, *options]) == 2
    assert named(capsys.readouterr().err, field, options[1])


CONFIGURATION = {
    **{"model_type": "llama", "hidden_size": 32, "intermediate_size": 64, "vocab_size": 128},
    **{"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2},
    **{"max_position_embeddings": 64, "torch_dtype": "bfloat16"},
}


def test_a_configuration_has_a_sample_for_each_accelerator(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "Llama-tiny"
    folder.mkdir()
    file = folder / "config.json"
    file.write_text(json.dumps(CONFIGURATION))
    plan = planned(tmp_path, str(file))
    assert (plan.model, plan.batch_size) == ("Llama-tiny", 8)
    assert planned(tmp_path, str(file), "--batch-size", "16").batch_size == 16
    capsys.readouterr()
    sizes = {}
    for options in ((), ("--sequence", "32"), ("--task", "sequence-classification")):
        assert main(["profile", str(file), *options, "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        assert found["batch_size"] == 1
        sizes[options] = found["forward_flops"], found["parameter_bytes"]
    head = 2 * 32 * 128
    assert sizes["--sequence", "32"][0] < sizes[()][0] / 2
    assert sizes["--sequence", "32"][1] == sizes[()][1]
    classes = 2 * 32 * 2
    assert sizes["--task", "sequence-classification"][1] == sizes[()][1] - head + classes
    assert main(["simulate", str(tmp_path / "plan.json"), "--model", str(file), "--json"]) == 0


@pytest.mark.parametrize(
    ("changes", "options", "words"),
    [
        ({"model_type": "no-such-type"}, (), ("model_type", "no-such-type", "llama")),
        ({"hidden_act": "relu"}, (), ("hidden_act", "relu")),
        ({}, ("--sequence", "65"), ("sequence", "65", "64")),
    ],
)
@pytest.mark.parametrize("verb", ["plan", "profile"])
def test_a_configuration_that_is_not_supported_is_one_line(
    verb: str,
    changes: dict[str, str],
    options: tuple[str, ...],
    words: tuple[str, ...],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    file = tmp_path / "config.json"
    file.write_text(json.dumps({**CONFIGURATION, **changes}))
    cluster = CLUSTER if verb == "plan" else ()
    assert main([verb, str(file), *cluster, *options]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert named(lines[0], str(file), *words)


@pytest.mark.parametrize(
    ("model", "sequence", "word"),
    [("gpt:tiny", 9, "8"), ("llama:tiny", 0, "1"), ("vgg:tiny", 4, "vgg:tiny")],
)
def test_shipped_models_refuse_sequences_that_they_cannot_read(
    model: str, sequence: int, word: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["profile", model, "--sequence", str(sequence)]) == 2
    assert named(capsys.readouterr().err, "--sequence", sequence, word)


@pytest.mark.parametrize("model", ["gpt", "llama", "qwen3-moe", "bert"])
def test_shipped_models_take_other_sequences(model: str, tmp_path: Path) -> None:
    def graph_of(*options: str) -> OpGraph:
        path = tmp_path / "graph.json"
        assert main(["profile", f"{model}:tiny", *options, "-o", str(path)]) == 0
        return OpGraph.load(path)

    whole, shorter = graph_of(), graph_of("--sequence", "3")
    assert sum(o.parameter_bytes for o in whole.operators) == sum(
        o.parameter_bytes for o in shorter.operators
    )
    assert max(o.output_bytes for o in shorter.operators) < max(
        o.output_bytes for o in whole.operators
    )
    assert shorter.model == f"{model}:tiny, 3 tokens"


def test_compare_and_profile_agree_with_plan(capsys: pytest.CaptureFixture[str]) -> None:
    own = MODELS["ncf"].SIZES["tiny"].batch_size
    assert main(["profile", "ncf:tiny", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["batch_size"] == own
    names = ("--architectures", "ideal-switch", "--json")
    cluster = ("--servers", "8", "--degree", "4", "--bandwidth", "100Gbps")
    assert main(["compare", "ncf:tiny", *cluster, *QUICK, *names]) == 0
    assert json.loads(capsys.readouterr().out)["batch_size"] == 8 * own
    assert (
        main(["compare", "ncf:tiny", *cluster, "--accelerators-per-server", "4", *QUICK, *names])
        == 0
    )
    assert json.loads(capsys.readouterr().out)["batch_size"] == 8 * 4 * own


def test_simulate_takes_the_batch_of_the_plan(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = planned(tmp_path, "vgg:tiny")
    capsys.readouterr()
    given = ["simulate", str(tmp_path / "plan.json"), "--model", "vgg:tiny", "--rings", "--json"]
    assert main(given) == 0
    simulated = json.loads(capsys.readouterr().out)
    assert simulated["completion_s"] == pytest.approx(plan.prediction.iteration_s, rel=0.02)


@pytest.mark.parametrize("verb", ["plan", "compare"])
def test_a_batch_that_cannot_be_shared_evenly_is_one_line(
    verb: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([verb, "bert:tiny", *CLUSTER, "--batch-size", "30"]) == 2
    assert capsys.readouterr().err.splitlines() == [
        "topoopt: error: --batch-size: 30 samples cannot be shared evenly by 8 accelerators; "
        "use a multiple or a divisor of 8"
    ]
