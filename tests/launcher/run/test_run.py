"""`topoopt run` from the command line to the run folder, with scripts that need little time."""

from __future__ import annotations

import json
import os
import runpy
import socket
import subprocess
import types
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from json_schemas import result_schema
from jsonschema import Draft202012Validator
from support.backend.ranks import require_tls
from support.refusals import named

from torch_topoopt.links.wiring import Wiring
from torch_topoopt.op_graph import OpGraph
from torch_topoopt.plan import Plan

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).parents[3]
Done = subprocess.CompletedProcess[str]

NO_GROUP = """
import json, os, sys
import torch_topoopt
names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "OMP_NUM_THREADS", "TORCHELASTIC_MAX_RESTARTS")
line = json.dumps({"arguments": sys.argv[1:], **{name: os.environ[name] for name in names}})
os.write(1, (line + os.linesep).encode())  # in one piece: both ranks write to the same pipe
if os.environ["RANK"] == "0":
    torch_topoopt.log(epoch=1, accuracy=0.5)
"""

CRASH = """
import os, sys, time, torch
if os.environ["RANK"] == "1":
    raise RuntimeError("the disk is full")
time.sleep(600)
"""

GLOO = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
total = torch.ones(3)
dist.all_reduce(total)
assert total.tolist() == [2.0, 2.0, 2.0]
dist.destroy_process_group()
"""

FLAKY = """
import os, pathlib, sys
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    sys.exit(7)
pathlib.Path(f"ended-{os.environ['RANK']}").touch()
"""

TRAIN = """
import torch, torch.distributed as dist

def build_model():
    return torch.nn.Linear(1000, 10)

def example_batch():
    return torch.zeros(8, 1000)

if __name__ == "__main__":
    dist.init_process_group()
    assert dist.get_backend() == "topoopt", dist.get_backend()
    torch.manual_seed(0)
    model = torch.nn.parallel.DistributedDataParallel(build_model())
    for step in range(3):
        model(torch.full((8, 1000), float(dist.get_rank()))).sum().backward()
    mean = sum(range(dist.get_world_size())) / dist.get_world_size()
    expected = torch.full((10, 1000), 3 * 8 * mean)
    torch.testing.assert_close(model.module.weight.grad, expected)
    dist.destroy_process_group()
"""

UNGUARDED = """
import argparse, pathlib, torch, torch.distributed as dist
parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int)
steps = parser.parse_args().steps
with open("started", "a") as file:
    file.write("x")
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(100, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(steps):
    optimizer.zero_grad()
    model(torch.ones(8, 100)).sum().backward()
    optimizer.step()
dist.destroy_process_group()
"""

PLACES = (
    TRAIN
    + """
    import os, pathlib
    names = ("LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE")
    place = " ".join(os.environ[name] for name in names)
    pathlib.Path(f"place-of-{os.environ['RANK']}").write_text(place)
"""
)


# The first two iterations reduce twice as much as the later ones.
WARMING_UP = """
import torch, torch.distributed as dist
dist.init_process_group()
optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)
for i in range(6):
    dist.all_reduce(torch.ones(400_000 if i < 2 else 200_000))
    optimizer.step()
dist.destroy_process_group()
"""


_START = """
import torch, torch.distributed as dist
from torch import nn
dist.init_process_group()
model = nn.Linear(128, 128)
"""
_TRAIN = """
for _ in range(8):
    model(torch.ones(4, 128)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
"""

ZERO = f"""{_START}
from torch.distributed.optim import ZeroRedundancyOptimizer
model = nn.parallel.DistributedDataParallel(model)
optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=0.01)
{_TRAIN}"""

COMPRESSED = f"""{_START}
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook
model = nn.parallel.DistributedDataParallel(model)
state = powerSGD_hook.PowerSGDState(None, start_powerSGD_iter=2)
model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
{_TRAIN}"""

PIPELINE = f"""{_START}
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
rank, world = dist.get_rank(), dist.get_world_size()
stage = PipelineStage(model, rank, world, torch.device("cpu"))
schedule = Schedule1F1B(stage, 4, loss_fn=nn.MSELoss())
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(8):
    schedule.step(*([torch.ones(8, 128)] if rank == 0 else []),
                  **({{}} if rank < world - 1 else {{"target": torch.ones(8, 128)}}))
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
"""


@pytest.fixture
def scripts(tmp_path: Path, ring_plan: Callable[..., Plan]) -> Path:
    """A folder with the scripts above and a hand-made plan for two servers."""
    for name, text in {
        "no_group.py": NO_GROUP,
        "crash.py": CRASH,
        "gloo.py": GLOO,
        "flaky.py": FLAKY,
        "train.py": TRAIN,
        "places.py": PLACES,
        "unguarded.py": UNGUARDED,
        "warming_up.py": WARMING_UP,
        "zero.py": ZERO,
        "compressed.py": COMPRESSED,
        "pipeline.py": PIPELINE,
    }.items():
        (tmp_path / name).write_text(text)
    ring_plan(2).save(tmp_path / "plan.json")
    return tmp_path


def _events(run_dir: Path, kind: str) -> list[dict[str, Any]]:
    lines = (run_dir / "metrics.jsonl").read_text().splitlines()
    return [event for line in lines if (event := json.loads(line))["event"] == kind]


def _only(paths: Any) -> Any:
    (path,) = paths
    return path


def test_a_script_gets_torchrun_s_environment_and_its_own_arguments(
    launcher: Any, scripts: Path
) -> None:
    done: Done = launcher.run(
        "run", "--plan", "plan.json", "no_group.py", "--epochs", "3", PET_MAX_RESTARTS="2"
    )
    assert done.returncode == 0, done.stderr
    ranks = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert sorted(rank["RANK"] for rank in ranks) == ["0", "1"]
    for rank in ranks:
        assert rank["arguments"] == ["--epochs", "3"]
        assert rank["WORLD_SIZE"] == "2"
        assert rank["LOCAL_RANK"] == rank["RANK"]
        assert rank["OMP_NUM_THREADS"] == "1"
        assert rank["TORCHELASTIC_MAX_RESTARTS"] == "2"
    run_dir = _only((scripts / "runs").iterdir())
    names = sorted(path.name for path in run_dir.iterdir())
    assert names == ["metrics.jsonl", "plan.json", "report.html", "wiring.json"]
    assert (run_dir / "plan.json").read_bytes() == (scripts / "plan.json").read_bytes()
    Wiring.load(run_dir / "wiring.json").check(Plan.load(run_dir / "plan.json"))
    assert [event["accuracy"] for event in _events(run_dir, "train")] == [0.5]
    assert [event["name"] for event in _events(run_dir, "stage")] == ["wire", "train"]
    assert _only(_events(run_dir, "end"))["exit_code"] == 0
    assert _only(_events(run_dir, "run"))["command"][:2] == ["topoopt", "run"]
    assert f"report: {run_dir.relative_to(scripts) / 'report.html'}" in done.stdout
    assert "\x1b" not in done.stdout + done.stderr, "no terminal, so no escape sequences"


@pytest.mark.parametrize(
    ("options", "script", "imported"),
    [
        ([], "plain.py", True),
        (["--start-method", "forkserver"], "plain.py", True),
        (["--start-method", "spawn"], "plain.py", False),
        ([], "sets_threads.py", False),
        (["-m"], "plain", False),
    ],
)
def test_ranks_start_with_torch_unless_they_or_the_user_object(
    launcher: Any, scripts: Path, options: list[str], script: str, imported: bool
) -> None:
    seen = (
        "import os, sys; open('seen-' + os.environ['RANK'], 'w').write(str('torch' in sys.modules))"
    )
    (scripts / "plain.py").write_text(seen)
    (scripts / "sets_threads.py").write_text(f"{seen}\nos.environ['OMP_NUM_THREADS'] = '2'")
    done = launcher.run("run", "--plan", "plan.json", *options, script)
    assert done.returncode == 0, done.stderr
    assert [path.read_text() for path in scripts.glob("seen-*")] == [str(imported)] * 2


def test_a_script_that_crashes_on_one_rank(launcher: Any, scripts: Path) -> None:
    done: Done = launcher.run("run", "--plan", "plan.json", "--run-dir", "here", "crash.py")
    assert done.returncode == 1
    assert "RuntimeError: the disk is full" in done.stderr, "the script's own traceback"
    assert done.stderr.splitlines()[-1] == (
        "topoopt: error: rank 1 of crash.py ended with exit code 1: RuntimeError: the disk is full"
    )
    assert "Time of each stage" not in done.stdout, "no tables between a failure and its cause"
    assert (scripts / "here" / "report.html").is_file()
    assert _only(_events(scripts / "here", "end"))["exit_code"] == 1
    launcher.wait_for_its_end()


def test_a_script_that_names_gloo_runs_and_a_line_explains_it(launcher: Any, scripts: Path) -> None:
    done: Done = launcher.run("run", "--plan", "plan.json", "--run-dir", "here", "gloo.py")
    assert done.returncode == 0, done.stderr
    assert done.stderr.splitlines()[-1] == (
        "topoopt: warning: no rank opened a topoopt group: the planned links carried nothing; the "
        "script requested gloo (--take-over gloo puts topoopt in its place)"
    )
    assert _events(scripts / "here", "link") == []


def test_restarts_redirected_logs_and_a_fixed_master_port_work_as_with_torchrun(
    launcher: Any, scripts: Path
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    options = ("--max-restarts", "1", "--redirects", "3", "--master-port", port)
    done: Done = launcher.run(
        "run", "--plan", "plan.json", "--run-dir", "here", *options, "flaky.py"
    )
    assert done.returncode == 0, done.stderr
    assert sorted(path.name for path in scripts.glob("ended-*")) == ["ended-0", "ended-1"]
    logs = sorted((scripts / "here" / "logs").rglob("stderr.log"))
    assert len(logs) == 4, "two ranks, two attempts"
    assert "logs: here/logs" in done.stdout


_ENCRYPTED = """
import os
import torch
import torch.distributed as dist

dist.init_process_group()
tensor = torch.ones(1000)
dist.all_reduce(tensor)
assert tensor.tolist() == [2.0] * 1000
dist.destroy_process_group()
# One string: unbuffered streams write each argument by itself, and those of ranks would mix.
print(f"encrypted: {os.environ['TOPOOPT_ENCRYPT']}")
"""


def test_the_links_of_a_run_are_encrypted_if_asked(launcher: Any, scripts: Path) -> None:
    require_tls()
    (scripts / "encrypted.py").write_text(_ENCRYPTED)
    done: Done = launcher.run(
        "run", "--plan", "plan.json", "--run-dir", "here", "--encrypt", "encrypted.py"
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("encrypted: 1") == 2


def test_wandb_gets_the_plan_and_what_was_measured(launcher: Any, scripts: Path) -> None:
    """Offline, without a key."""
    done: Done = launcher.run(
        "run", "--plan", "plan.json", "--run-dir", "here", "--wandb", "no_group.py"
    )
    assert done.returncode == 0, done.stderr
    offline = _only((scripts / "here" / "wandb").glob("offline-run-*"))
    recorded = _only(offline.glob("*.wandb")).read_bytes()
    for name in (b"accuracy", b"predicted_iteration_s", b"plan_digest", b"search/best_s"):
        assert name in recorded
    assert b"plan.json" in recorded, "the artifact"
    assert len(list(offline.glob("files/media/images/traffic*.png"))) == 1
    assert f"wandb sync here/wandb/{offline.name}" in done.stdout


def test_a_sweep_runs_without_its_server(
    launcher: Any, scripts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two runs of the sweep in docs/guides/timelines.md: offline, in a group, with their names."""
    page = (ROOT / "docs" / "guides" / "timelines.md").read_text()
    sweep = yaml.safe_load(page.partition("```yaml\n")[2].partition("```")[0])
    sweep |= {"program": "unguarded.py", "parameters": {"seed": {"values": [0, 1]}}}
    sweep["command"][sweep["command"].index("4")] = "2"
    sweep["command"][-1:] = ["--model=none", "--take-over=gloo", "${program}", "--steps", "6"]
    (scripts / "sweep.yaml").write_text(json.dumps(sweep))
    for name in ("WANDB_RUN_GROUP", "WANDB_NAME"):  # which the example sets
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)

    def run(command: list[str]) -> Done:
        assert command[0] == "topoopt"
        given = {name: os.environ[name] for name in ("WANDB_RUN_GROUP", "WANDB_NAME")}
        done: Done = launcher.run(*command[1:], **given)
        assert done.returncode == 0, done.stderr
        return done

    example = runpy.run_path(str(ROOT / "examples" / "sweep.py"))
    example["main"].__globals__["subprocess"] = types.SimpleNamespace(run=run)
    assert example["main"](str(scripts / "sweep.yaml")) == 0
    recorded = [path.read_bytes() for path in scripts.glob("runs/*/wandb/offline-run-*/*.wandb")]
    assert len(recorded) == 2
    for seed in (0, 1):
        (text,) = (text for text in recorded if f"seed {seed}".encode() in text)
        assert b"ports" in text, "the group"
        assert b"\x0biteration_s" in text, "the metric, by its length and name"
        assert b"bus_gbps" in text


def test_a_small_gpt_learns_text(launcher: Any, scripts: Path) -> None:
    """examples/gpt.py, on four sentences: what it sends is what its plan says."""
    (scripts / "text.txt").write_text("The cables are wired, and the ring is closed. " * 40)
    done: Done = launcher.run(
        *("run", "--servers", "2", "--json", "--run-dir", "here", ROOT / "examples" / "gpt.py"),
        *("--text", "text.txt", "--steps", "12", "--batch-size", "4"),
    )
    assert done.returncode == 0, done.stderr
    losses = [event["loss"] for event in _events(scripts / "here", "train")]
    assert 0 < losses[-1] < 4.0, "below that of the first step, the logarithm of 128"
    assert "The " in done.stderr, "it writes"
    figures = json.loads(done.stdout)
    assert figures["plan"]["model"] == "gpt"
    assert figures["iterations"]["link_bytes_difference"] < 0.01


def test_tensorboard_gets_the_plan_and_what_was_measured(launcher: Any, scripts: Path) -> None:
    pytest.importorskip("tensorboard")
    done: Done = launcher.run(
        "run", "--plan", "plan.json", "--run-dir", "here", "--tensorboard", "no_group.py"
    )
    assert done.returncode == 0, done.stderr
    assert "tensorboard --logdir here/tensorboard" in done.stdout
    tags = _tensorboard_tags(scripts / "here" / "tensorboard")
    assert {"search/best_s", "train/accuracy"} <= set(tags["scalars"])
    assert tags["images"] == ["traffic"]
    assert {"links/text_summary", "config/text_summary"} <= set(tags["tensors"])


def _tensorboard_tags(folder: Path) -> dict[str, Any]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder))
    events.Reload()
    tags: dict[str, Any] = events.Tags()
    return tags


@pytest.mark.parametrize(
    ("options", "difference"),
    [((), 0.0), (("--trace-iterations", "2"), 0.5), (("--trace-iterations", "3"), 0.0)],
)
def test_a_script_that_warms_up_is_explained_or_traced_later(
    launcher: Any, scripts: Path, options: tuple[str, ...], difference: float
) -> None:
    done: Done = launcher.run(
        *("run", "--servers", "2", "--bandwidth", "500Mbps", "--json", *options, "warming_up.py")
    )
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout)
    assert figures["iterations"]["link_bytes_difference"] == pytest.approx(difference)
    found = "rank 0 called 800 kB in groups of 2 per iteration, and 1.6 MB in groups of 2 in the"
    assert (found in done.stderr) == (difference > 0)


@pytest.mark.parametrize("name", ["zero.py", "pipeline.py", "compressed.py"])
def test_small_messages_pipelines_and_compressed_gradients_are_as_predicted(
    launcher: Any, scripts: Path, name: str
) -> None:
    done: Done = launcher.run(
        *("run", "--servers", "2", "--bandwidth", "500Mbps", "--no-measure-steps", "--json", name)
    )
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout)
    assert figures["iterations"]["link_bytes_difference"] < 0.01
    assert max(link["iteration_bytes"] for link in figures["links"]) > 100


def test_a_script_without_a_guard_is_traced_and_its_bytes_are_as_predicted(
    launcher: Any, scripts: Path
) -> None:
    cluster = ("--servers", "2", "--take-over", "gloo", "--json", "--run-dir", "here")
    done: Done = launcher.run("run", *cluster, "unguarded.py", "--steps", "6")
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout)
    (reduce,) = figures["work"]["operations"]
    assert (reduce["name"], reduce["ranks"], reduce["size_bytes"]) == ("all_reduce", 2, 4 * 1010)
    assert reduce["per_iteration"] == 1.0
    assert figures["work"]["bus_gbps"] > 0
    for rank in figures["work"]["ranks"]:
        assert rank["iterations"] == 3
        assert 0 < rank["under_way_s"] <= rank["seconds"]
        assert rank["own_s"] is None or 0 < rank["own_s"] <= rank["seconds"]
    assert len(_events(scripts / "here", "rank")) == 2
    assert named(done.stderr, "tracing", "unguarded.py")
    assert named(done.stderr, "asks for gloo")
    assert (scripts / "started").read_text() == "x" * 3, "two ranks and the trace of one"
    gradient_bytes = 4 * (100 * 10 + 10)
    plan = Plan.load(scripts / "here" / "plan.json")
    assert plan.demand.groups[0].size_bytes == gradient_bytes
    assert plan.prediction.link_bytes == (gradient_bytes, gradient_bytes)
    assert figures["plan"]["predicted"]["iteration_s"] is None
    assert figures["iterations"]["link_bytes_difference"] == 0
    assert figures["iterations"]["predicted_s"] is None
    assert 0 < figures["start_up_s"] < figures["stage_s"]["train"]
    assert figures["groups"] == {
        "asked": ["gloo"],
        "taken_over": ["gloo"],
        "opened_topoopt": True,
    }


def test_all_four_stages_on_the_topoopt_backend(launcher: Any, scripts: Path) -> None:
    servers = 4
    cluster = ("--servers", str(servers), "--degree", "2", "--bandwidth", "400Mbps")
    done: Done = launcher.run("run", *cluster, "--json", "--run-dir", "here", "train.py")
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout)
    Draft202012Validator(result_schema("run")).validate(figures)
    for name in ("profile", "co-optimise", "wire", "train"):
        assert f"] {name}" in done.stderr
        assert figures["stage_s"][name] > 0
    run_dir = scripts / "here"
    plan = Plan.load(run_dir / "plan.json")
    assert plan.model == OpGraph.load(run_dir / "opgraph.json").model == "train"
    assert {port.gbps for port in Wiring.load(run_dir / "wiring.json").ports} == {0.4}
    planned = {(k.source, k.source_port, k.target, k.target_port) for k in plan.network.links}
    ends = ("source", "source_port", "target", "target_port")
    measured = {tuple(link[end] for end in ends): link for link in figures["links"]}
    assert set(measured) == planned, "the planned links and no others"
    assert len(_events(run_dir, "link")) == len(planned)
    # three steps AllReduce the gradients; every server sends 2 (n - 1) / n of them over its rings
    gradient_bytes = 4 * (10 * 1000 + 10)
    least = 3 * 2 * (servers - 1) * gradient_bytes
    assert sum(link["sent_bytes"] for link in measured.values()) >= least
    assert list(run_dir.glob("links-rank*")) == []


def test_four_servers_with_three_ports_train_over_a_full_mesh(launcher: Any, scripts: Path) -> None:
    cluster = ("--servers", "4", "--degree", "3", "--bandwidth", "20Mbps")
    done: Done = launcher.run("run", *cluster, "--json", "--run-dir", "here", "train.py")
    assert done.returncode == 0, done.stderr
    links = json.loads(done.stdout)["links"]
    ends = {(link["source"], link["target"]) for link in links}
    assert ends == {(a, b) for a in range(4) for b in range(4) if a != b}
    sent = [link["sent_bytes"] for link in links]
    # in three steps, half of the gradients on each of the twelve links, up to whole elements
    assert min(sent) >= 3 * 0.5 * 4 * 10_010 * 0.99


def test_ranks_of_one_emulated_server_share_its_links_and_know_their_place(
    launcher: Any, scripts: Path
) -> None:
    done: Done = launcher.run(
        "run",
        "--servers",
        "2",
        "--accelerators-per-server",
        "2",
        "--json",
        "--run-dir",
        "h",
        "places.py",
    )
    assert done.returncode == 0, done.stderr
    places = [(scripts / f"place-of-{rank}").read_text() for rank in range(4)]
    assert places == ["0 2 0 2", "1 2 0 2", "0 2 1 2", "1 2 1 2"]
    assert Plan.load(scripts / "h" / "plan.json").cluster.accelerators_per_server == 2
    links = json.loads(done.stdout)["links"]
    assert [(link["source"], link["target"]) for link in links] == [(0, 1), (1, 0)]
    assert all(link["sent_bytes"] > 0 for link in links)
