"""`topoopt plan` of layouts: its output, --layout, and verbs that are given such a plan."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from support.refusals import named
from support.small_op_graphs import chain, decoder

from torch_topoopt.launcher.main import main
from torch_topoopt.launcher.plan import planning
from torch_topoopt.plan import Plan

if TYPE_CHECKING:
    from pathlib import Path

CLUSTER = ("--servers", "4", "--degree", "2", "--bandwidth", "200Gbps", "--no-failures")
BOXES = (*CLUSTER, "--accelerators-per-server", "2", "--accelerator", "h100:bf16")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    decoder(4).save(tmp_path / "graph.json")
    return tmp_path


def plan(folder: Path, *arguments: Any, cluster: tuple[str, ...] = BOXES) -> int:
    words = ["plan", str(folder / "graph.json"), *cluster, *map(str, arguments)]
    return main([*words, "-o", f"{folder}/p.json"])


def test_the_output_has_the_layout_its_time_and_its_memory(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert plan(folder, "--strategy-space", "layouts") == 0
    out = capsys.readouterr().out
    layout = Plan.load(folder / "p.json").layout
    assert layout is not None
    assert f"layout: {layout}" in out
    for column in ("compute", "exchange", "bubble", "state", "optimizer", "activations", "total"):
        assert named(out, column)


def test_the_accelerator_computes_in_the_format_of_the_model(folder: Path) -> None:
    graph = decoder(4)
    replace(graph, number_format="bf16").save(folder / "graph.json")
    cluster = (*CLUSTER, "--accelerators-per-server", "2", "--accelerator", "h100")
    assert plan(folder, "--strategy-space", "layouts", cluster=cluster) == 0
    assert Plan.load(folder / "p.json").cluster.accelerator == "h100:bf16"


def test_json_has_the_layout_and_its_figures(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert plan(folder, "--strategy-space", "layouts", "--explain", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    made = Plan.load(folder / "p.json")
    assert made.layout is not None
    assert found["layout"]["data"] == made.layout.data
    times, memory = found["layout_figures"]["times"], found["layout_figures"]["memory"]
    assert times["step_s"] == pytest.approx(found["predicted"]["iteration_s"])
    assert set(memory) >= {"parameters", "gradients", "optimizer", "activations", "runtime"}
    assert {other["kind"] for other in found["other_layouts"]} >= {"pipeline"}
    assert "explain" not in found


def test_a_plan_of_a_strategy_has_no_layout_in_json(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert plan(folder, "--strategy-space", "data-parallel", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert not {"layout", "layout_figures", "other_layouts"} & set(found)


def test_the_default_space_is_all(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert plan(folder, "--evaluations", 10, "--rounds", 1) == 0
    assert "strategy space all" in capsys.readouterr().out
    assert plan(folder, "--evaluations", 10, "--rounds", 1, "--micro-batches", 2) == 0
    assert "strategy space full" in capsys.readouterr().out


def test_a_layout_is_priced_alone(folder: Path) -> None:
    assert plan(folder, "--layout", "tensor=2,sharding=parameters") == 0
    layout = Plan.load(folder / "p.json").layout
    assert layout is not None
    assert (layout.tensor, layout.data, layout.state_shards) == (2, 4, 4)


def test_a_size_of_micro_batches_that_is_left_open_is_searched(folder: Path) -> None:
    def planned(text: str) -> Plan:
        assert plan(folder, "--layout", text) == 0
        return Plan.load(folder / "p.json")

    sharded = "sharding=parameters"
    open_plan, least = planned(sharded), planned(f"{sharded},micro_batch=1")
    assert open_plan.layout is not None
    assert open_plan.layout.micro_batch > 1
    assert open_plan.prediction.iteration_s < least.prediction.iteration_s


def test_the_optimizer_and_the_rate_inside_a_server_count(folder: Path) -> None:
    def seconds(*options: str) -> float:
        assert plan(folder, "--layout", "tensor=2", *options) == 0
        return Plan.load(folder / "p.json").prediction.iteration_s

    adamw = seconds("--optimizer", "adamw")
    assert seconds() == adamw
    assert seconds("--optimizer", "sgd") < adamw
    assert seconds("--inside-bandwidth", "50Gbps") > adamw
    assert Plan.load(folder / "p.json").cluster.inside_gbps == 50
    assert seconds("--software", "eager") >= adamw


def test_state_may_be_on_the_host(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = "--strategy-space", "layouts", "--offload", "host", "--host-memory-gb", "512"
    assert plan(folder, *options) == 0
    made = Plan.load(folder / "p.json")
    assert made.layout is not None
    assert (made.layout.offload, made.cluster.host_memory_gb) == ("host", 512)
    assert named(capsys.readouterr().out, made.layout, "on its host")
    assert main(["simulate", str(folder / "p.json"), "--json"]) == 0
    seconds = json.loads(capsys.readouterr().out)["completion_s"]
    assert seconds == pytest.approx(made.prediction.iteration_s, rel=0.1)


def test_a_layout_is_checked_before_the_model_is_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", f"{tmp_path}/missing.json", *BOXES, "--layout", "tensor=3"]) == 2
    assert named(capsys.readouterr().err, "--layout", "tensor=3", 8)


@pytest.mark.parametrize(
    ("arguments", "tokens"),
    [
        (("--layout", "tensor=3"), ("--layout", "tensor=3", 6, 8)),
        (("--layout", "micro_batch=3", "--batch-size", "16"), ("--layout", "8 x 1 x 3", 24, 16)),
        (("--layout", "width=3"), ("--layout", "width")),
        (("--layout", "expert=2"), ("expert", 2, "experts")),
        (("--layout", "pipeline=8"), ("pipeline", 8, "4 blocks")),
        (("--layout", "tensor=2", "--strategy-space", "full"), ("layout",)),
        (("--strategy-space", "layouts", "--micro-batches", "2"), ("micro-batches",)),
        (("--optimizer", "adamw", "--optimizer-state", "2"), ("optimizer-state",)),
        (("--optimizer", "adamax"), ("optimizer", "adamax", "adamw")),
        (("--inside-bandwidth", "0Gbps"), ("inside-bandwidth",)),
        (("--host-memory-gb", "-1"), ("host-memory-gb", "-1.0")),
        (("--layout", "data=8", "--offload", "host"), ("offload", "--layout")),
        (("--strategy-space", "full", "--offload", "host"), ("offload", "layouts")),
    ],
)
def test_what_cannot_be_is_named(
    arguments: tuple[str, ...],
    tokens: tuple[object, ...],
    folder: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert plan(folder, *arguments) == 2
    error = capsys.readouterr().err
    assert named(error, *tokens)
    assert error.count("\n") == 1
    assert not (folder / "p.json").exists()


JOINT = """
import torch
import torch_topoopt
from torch import nn


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.joint, self.out = nn.Linear(16, 32), nn.Linear(16, 16)

    def forward(self, x):
        made = self.joint(x)
        each = (made[..., first : first + 16] for first in (0, 8, 16))
        parts = (p.unflatten(-1, (-1, 4)).transpose(1, 2) for p in each)
        mixed = nn.functional.scaled_dot_product_attention(*parts, is_causal=True)
        return self.out(mixed.transpose(1, 2).flatten(-2))


def build_model():
    return nn.Sequential(*(Block() for _ in range(4)), nn.Linear(16, 16))


def example_batch():
    return torch.zeros(8, 8, 16)


if __name__ == "__main__":
    torch_topoopt.pipeline(build_model(), example_batch(), nn.functional.mse_loss)
"""


def test_what_a_script_cannot_execute_is_not_planned(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "joint.py"
    script.write_text(JOINT, encoding="utf-8")
    words = ["plan", str(script), *CLUSTER, "-o", str(tmp_path / "p.json")]
    assert main([*words, "--layout", "tensor=2"]) == 2
    error = capsys.readouterr().err
    assert named(error, "tensor", "0.joint")
    assert error.count("\n") == 1
    assert main([*words, "--strategy-space", "layouts"]) == 0
    layout = Plan.load(tmp_path / "p.json").layout
    assert layout is not None
    assert layout.tensor == 1


def test_what_does_not_fit_says_what_would(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    decoder(4, parameters=10**11).save(folder / "graph.json")
    assert plan(folder) == 2
    error = capsys.readouterr().err
    assert named(error, "h100:bf16", "weights", "AdamW", "sharded over 8")


@pytest.mark.parametrize(
    "words", [("export", "--to", "flexflow"), ("simulate", "--architecture", "torus")]
)
def test_verbs_that_need_placements_refuse_a_layout(
    words: tuple[str, ...], folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert plan(folder, "--strategy-space", "layouts") == 0
    capsys.readouterr()
    assert main([words[0], str(folder / "p.json"), *words[1:]]) == 2
    assert named(capsys.readouterr().err, "layout")


def test_layouts_are_simulated_with_their_trainer(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    seconds = []
    for optimizer in ("adamw", "sgd"):
        assert plan(folder, "--layout", "tensor=2", "--optimizer", optimizer) == 0
        made = Plan.load(folder / "p.json")
        capsys.readouterr()
        assert main(["simulate", str(folder / "p.json"), "--iterations", "2", "--json"]) == 0
        seconds.append(json.loads(capsys.readouterr().out)["completion_s"])
        assert seconds[-1] == pytest.approx(2 * made.prediction.iteration_s, rel=0.1)
    assert seconds[1] < seconds[0]


def test_the_timeline_of_a_layout_has_its_passes_and_collectives(folder: Path) -> None:
    assert plan(folder, "--layout", "pipeline=2,sharding=parameters,micro_batch=2") == 0
    assert main(["timeline", str(folder / "p.json"), "-o", str(folder / "t.json")]) == 0
    events = json.loads((folder / "t.json").read_text())["traceEvents"]
    names = {event["name"] for event in events}
    for word in ("forward", "backward", "AllGather of parameters", "activations", "optimizer"):
        assert any(word in name for name in names), word
    assert {event["pid"] for event in events} == {0, 1, 2, 3}


def test_reports_and_differences_name_the_layout(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert plan(folder, "--layout", "tensor=2") == 0
    (folder / "p.json").rename(folder / "tensor.json")
    assert plan(folder, "--layout", "data=8") == 0
    layout = str(Plan.load(folder / "p.json").layout)
    assert main(["report", str(folder / "p.json")]) == 0
    page = (folder / "p.html").read_text()
    assert layout in page
    assert named(page, "fullest accelerator", "AllReduce", "gradients")
    capsys.readouterr()
    assert main(["diff", str(folder / "tensor.json"), str(folder / "p.json")]) == 0
    out = capsys.readouterr().out
    assert named(out, "layout.tensor", "layout.data")
    assert "layout.context" not in out


def test_a_run_refuses_a_layout_with_micro_batches_for_a_script_without_steps(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert plan(folder, "--layout", "data=8,micro_batches=2") == 0
    script = folder / "train.py"
    script.write_text("import torch_topoopt\ntorch_topoopt.parallelize(None, None)\n")
    capsys.readouterr()
    assert main(["run", "--plan", str(folder / "p.json"), str(script)]) == 2
    error = capsys.readouterr().err
    assert named(error, "micro_batches", 2, "torch_topoopt.pipeline")
    assert error.count("\n") == 1


def test_models_without_layers_are_planned_as_before(folder: Path) -> None:
    chain(3).save(folder / "graph.json")
    few = ("--evaluations", 10, "--rounds", 1)
    assert plan(folder, *few) == 0
    assert Plan.load(folder / "p.json").layout is None


@pytest.mark.parametrize("words", [("--layout", "tensor=4"), ("--strategy-space", "layouts")])
def test_a_run_with_layouts_needs_a_script_that_divides_its_model(
    words: tuple[str, ...], folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = folder / "train.py"
    script.write_text("def build_model(): pass\n")
    model = ("--model", str(folder / "graph.json"))
    assert main(["run", *words, *CLUSTER[:-1], *model, str(script)]) == 2
    assert named(capsys.readouterr().err, "layout", "torch_topoopt.parallelize", script)


def test_compare_has_the_layouts_of_architectures(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["compare", str(folder / "graph.json"), *CLUSTER[:-1], *BOXES[-4:]]
    words += ["--strategy-space", "layouts", "--architectures", "topoopt,torus"]
    assert main([*words, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["architectures"]
    assert [row["architecture"] for row in rows] == ["topoopt", "torus"]
    assert all(row["layout"]["micro_batch"] >= 1 for row in rows)
    assert main(words) == 0
    assert named(capsys.readouterr().out, "layout of", "torus")
    assert main([*words, "--level", "packet"]) == 2
    assert named(capsys.readouterr().err, "layouts")


def test_a_precision_halves_what_is_gathered_and_not_the_sums(tmp_path: Path) -> None:
    sent = []
    for precision in ((), ("--precision", "bf16")):
        words = ["plan", "gpt:tiny", *CLUSTER, "--accelerator", "h100", *precision]
        output = str(tmp_path / "p.json")
        assert main([*words, "--layout", "sharding=parameters", "-o", output]) == 0
        made = Plan.load(tmp_path / "p.json")
        assert made.trainer.precision == ("bf16" if precision else "own")
        sent.append(sum(group.size_bytes for group in made.demand.groups))
    assert sent[1] == pytest.approx(sent[0] * 2 / 3, rel=1e-3)  # two gathers and a scatter


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("gpt:tiny", "--strategy-space", "full"), "layouts"),
        (("graph.json", "--layout", "tensor=2"), "OpGraph"),
        (("llama:1b", "--layout", "sharding=parameters"), "already"),
    ],
)
def test_a_precision_that_is_not_chosen_there_is_refused(
    words: tuple[str, ...], why: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = str(folder / words[0]) if words[0].endswith(".json") else words[0]
    options = (*CLUSTER, "--precision", "bf16", "-o", str(folder / "p.json"))
    assert main(["plan", model, *words[1:], *options]) == 2
    assert named(capsys.readouterr().err, "precision", why)


@pytest.mark.parametrize("call", ["torch.bfloat16", "chosen"])
def test_a_script_says_its_precision(call: str, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(f"import torch_topoopt as t\nt.pipeline(m, b, loss, precision={call})\n")
    assert planning.precision_of(str(script)) == ("bf16" if call != "chosen" else "own")
