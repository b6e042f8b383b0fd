"""Errors of `topoopt run` before it starts anything: one line and exit code 2."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import socket
import subprocess
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
import torch.distributed.run
from support.limits import limit_s
from support.refusals import named, refused

from torch_topoopt.launcher import documents
from torch_topoopt.launcher.errors import InputError
from torch_topoopt.launcher.main import main
from torch_topoopt.launcher.parser import Renamed
from torch_topoopt.launcher.run import options as run_options
from torch_topoopt.launcher.run import run_parser, wandb_log
from torch_topoopt.links.errors import FabricError
from torch_topoopt.plan import Placement, Plan
from torch_topoopt.plan.codec import DocumentError

if TYPE_CHECKING:
    from pathlib import Path

MakePlan = Callable[..., Plan]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ring_plan: MakePlan) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PET_NPROC_PER_NODE", raising=False)
    (tmp_path / "script.py").write_text("print('never started')\n")
    (tmp_path / "broken.py").write_text("print(\n")
    ring_plan(4).save(tmp_path / "plan.json")
    return tmp_path


@pytest.mark.parametrize(
    ("arguments", "tokens"),
    [
        ("script.py", ("servers", "--servers", 4)),
        ("--servers 4 missing.py", ("missing.py",)),
        ("missing.py --servers 4", ("missing.py",)),
        ("script.py --servers 4", ("--servers", "script.py")),
        ("script.py --cluster=lab.yaml", ("--cluster", "script.py")),
        ("script.py --plan plan.json", ("--plan", "script.py")),
        ("", ("required", "SCRIPT")),
        ("--servers 4 --no-python missing", ("missing", "program")),
        (
            "--servers 4 --measure script.py",
            (
                "measure",
                "script.py",
                "build_model",
                "__main__",
                "--model",
                "file.py:callable",
                "--measure",
            ),
        ),
        ("--servers 4 --strategy-space full -m json.tool", ("strategy-space", "json.tool")),
        ("--servers 4 --trace-iterations 1 script.py", ("trace-iterations", 1, 2)),
        (
            "--servers 4 --trace-timeout 0 script.py",
            ("trace-timeout", 0),
        ),
        (
            "--servers 4 --trace-memory 4 script.py",
            ("--trace-memory", 4),
        ),
        ("--servers 4 --alltoall often script.py", ("--alltoall", "choice", "often")),
        (
            "--servers 4 --alltoall reconfigure script.py",
            ("alltoall", "reconfigure", "switch"),
        ),
        (
            "--servers 4 --switch-delay 0.01 script.py",
            ("switch-delay", "--fabric"),
        ),
        ("--servers 4 --take-over mpi script.py", ("--take-over", "mpi")),
        ("--servers 4 broken.py", ("broken.py", "line 1")),
        ("--servers 4", ("required", "SCRIPT")),
        ("--servers 4 --degree 5 script.py", ("degree", 5, 3)),
        ("--servers 8 --degree 1 script.py", ("degree", 1, 8)),
        ("--servers 4 --bandwidth 200 script.py", ("bandwidth", 200, "200Gbps")),
        ("--servers 4 --nproc-per-node 2 script.py", ("nproc-per-node", 2, 4)),
        ("--servers 4 --nproc-per-node gpu script.py", ("nproc-per-node", 4)),
        (
            "--servers 4 --accelerators-per-server 0 script.py",
            ("accelerators-per-server", 1),
        ),
        (
            "--nproc-per-node 5 --accelerators-per-server 2 script.py",
            (5, 2),
        ),
        (
            "--plan plan.json --accelerators-per-server 2 script.py",
            ("accelerators-per-server", 2, "plan.json", 1),
        ),
        ("--servers 4 --nnodes 2 script.py", ("--nnodes", 2, "--servers")),
        ("--servers 6 --nnodes 2:5 script.py", ("servers", 6, "2..5")),
        ("--servers 5 --nnodes 2:5 script.py", ("nnodes", "2:5", "--max-restarts", "--servers")),
        ("--servers 4 --nnodes 2:5 --grow-interval -1 script.py", ("grow-interval", -1)),
        ("--nnodes 5:4 script.py", ("nnodes", "5:4", "MIN", "1..4")),
        ("--nnodes 2:4 script.py", ("nnodes", "2:4", "--max-restarts")),
        ("--plan plan.json --nnodes 5:5 script.py", ("nnodes", "5:5", "MAX", 4)),
        (
            "--nnodes 2:4 --max-restarts 1 --rdzv-backend c10d script.py",
            ("nnodes", "2:4"),
        ),
        (
            "--nnodes 2:4 --max-restarts 1 --model vgg --strategy plan.json script.py",
            ("nnodes", "2:4", "plan.json", 4),
        ),
        (
            "--nnodes 2:4 --max-restarts 1 --model vgg --strategy-space pipeline --stages 4 "
            "script.py",
            ("stages", 4, 2),
        ),
        ("--servers 4 --max-restarts -1 script.py", ("max-restarts", -1)),
        ("--servers 4 --fabric token script.py", ("--fabric", "choice", "token")),
        (
            "--servers 4 --fabric netns --master-port 29000 script.py",
            ("master-port", 29000),
        ),
        (
            "--servers 4 --fabric netns --ports simplex script.py",
            ("ports", "simplex"),
        ),
        (
            "--servers 4 --fabric netns --bandwidth 40Gbps script.py",
            ("bandwidth", 40, 32),
        ),
        (
            "--servers 4 --fabric netns --rdzv-endpoint here:1 script.py",
            ("rdzv-endpoint", "here:1"),
        ),
        ("--servers 4 --master-port 70000 script.py", ("master-port", 70000, "0..65535")),
        (
            "--servers 4 --master-addr 192.0.2.1 script.py",
            ("master-addr", "192.0.2.1"),
        ),
        ("--plan plan.json --servers 8 script.py", ("servers", 8, "plan.json")),
        ("--plan plan.json --degree 1 script.py", ("degree", 1, "plan.json")),
        (
            "--plan plan.json --bandwidth 25Gbps script.py",
            ("bandwidth", 25, "plan.json", 1),
        ),
        ("--plan plan.json --ports simplex script.py", ("ports", "simplex")),
        (
            "--plan plan.json --nproc-per-node 5 script.py",
            ("nproc-per-node", 5, 4),
        ),
        ("--plan plan.json --model vgg script.py", ("model", "--model", "--plan")),
        ("--plan nowhere.json script.py", ("nowhere.json",)),
    ],
)
def test_options_that_cannot_work(
    arguments: str, tokens: tuple[object, ...], folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sorted(folder.iterdir())
    assert main(["run", *arguments.split()]) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("topoopt: error: ")
    assert named(captured.err, *tokens)
    assert captured.err.count("\n") == 1
    assert captured.out == ""
    assert sorted(folder.iterdir()) == before, "nothing was written"


def _edit(path: Path, **changes: object) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def _disconnect(path: Path) -> None:
    plan = json.loads(path.read_text())
    network = plan["network"]
    network["links"] = [k for k in network["links"] if {k["source"], k["target"]} <= {0, 1}]
    _edit(path, network=network)


@pytest.mark.parametrize(
    ("damage", "tokens"),
    [
        (_disconnect, ("network.links", "server 2", "server 0")),
        (lambda path: _edit(path, version=99), ("version", 99)),
        (lambda path: _edit(path, colour="red"), ("colour", "unknown")),
        (lambda path: path.write_text('{"version": 1,'), ("JSON",)),
        (lambda path: path.write_text("[]"), ("Plan", "list")),
    ],
)
def test_a_plan_that_is_damaged(
    damage: Callable[[Path], None],
    tokens: tuple[object, ...],
    folder: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    damage(folder / "plan.json")
    assert main(["run", "--plan", "plan.json", "script.py"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("topoopt: error: plan.json: ")
    assert named(error, *tokens)
    assert error.count("\n") == 1
    assert not (folder / "runs").exists()


def test_a_plan_that_is_not_data_parallel_needs_the_module_that_it_is_for(
    folder: Path, ring_plan: MakePlan, capsys: pytest.CaptureFixture[str]
) -> None:
    split = dataclasses.replace(ring_plan(4), strategy=(Placement("embedding", (2,)),))
    split.save(folder / "plan.json")
    assert main(["run", "--plan", "plan.json", "script.py"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("topoopt: error: plan.json: strategy: ")
    assert named(error, "script.py", "build_model()", "--plan")
    assert error.count("\n") == 1


def test_a_master_port_in_use_is_found_before_anything_starts(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = str(server.getsockname()[1])
        assert main(["run", "--servers", "4", "--master-port", port, "script.py"]) == 2
    assert f"master-port: {port} is in use; choose another" in capsys.readouterr().err
    assert not (folder / "runs").exists()


def test_the_default_port_of_torchrun_is_not_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is a number in some versions of torch, 2.11 among them, and None in others."""
    get_args_parser = torch.distributed.run.get_args_parser

    def as_in_torch_2_11() -> argparse.ArgumentParser:
        options = get_args_parser()
        options.set_defaults(master_port=29500)
        return options

    monkeypatch.setattr(torch.distributed.run, "get_args_parser", as_in_torch_2_11)
    assert run_parser.make_parser().get_default("master_port") is None


def test_a_run_folder_that_holds_something_is_not_touched(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = folder / "results" / "precious"
    kept.parent.mkdir()
    kept.write_text("data")
    assert main(["run", "--plan", "plan.json", "--run-dir", "results", "script.py"]) == 2
    assert named(capsys.readouterr().err, "run-dir", "results", "empty")
    assert [path.name for path in kept.parent.iterdir()] == ["precious"]


def test_trackers_that_are_not_installed_are_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(wandb_log.importlib.util, "find_spec", lambda name: None)
    assert main(["run", "--plan", "plan.json", "--wandb", "script.py"]) == 2
    assert named(capsys.readouterr().err, "wandb", "--wandb")
    assert main(["run", "--plan", "plan.json", "--tensorboard", "script.py"]) == 2
    assert named(capsys.readouterr().err, "--tensorboard", "pip")


@pytest.mark.parametrize(
    ("option", "value", "tokens"),
    [
        ("--timeline", "18:10", ("18:10", "FIRST:END")),
        ("--serve-port", "70000", ("serve-port", 70000, "0..65535")),
    ],
)
def test_options_of_the_live_view_are_checked(
    option: str, value: str, tokens: tuple[object, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        code = main(["run", "--servers", "2", option, value, "--model", "none", __file__])
    except SystemExit as error:
        code = int(error.code or 0)
    assert code == 2
    assert named(capsys.readouterr().err, *tokens)


def test_defaults_make_the_smallest_ring_that_can_be() -> None:
    for servers, degree in ((1, 1), (2, 1), (3, 2), (8, 2)):
        options = run_options.parse(["--servers", str(servers), "script.py"])
        assert (options.cluster.servers, options.cluster.degree) == (servers, degree)
        assert options.gbps is None, "no --bandwidth, so nothing is limited"
        assert options.torchrun.nproc_per_node == str(servers)
        assert options.source.model == "", "it has no build_model()"
        assert (options.source.script is None) == (servers == 1), (
            "one rank communicates with no other"
        )


def test_accelerators_per_server_times_servers_is_the_number_of_processes() -> None:
    for arguments in ("--servers 3", "--nproc-per-node 6"):
        options = run_options.parse(
            [*arguments.split(), "--accelerators-per-server", "2", "script.py"]
        )
        assert (options.cluster.servers, options.cluster.accelerators_per_server) == (3, 2)
        assert options.torchrun.nproc_per_node == "6"


def test_a_plan_brings_its_cluster_and_its_bandwidth() -> None:
    options = run_options.parse(["--plan", "plan.json", "script.py", "--servers", "9"])
    assert options.cluster.servers == 4
    assert options.gbps == 1.0
    assert options.torchrun.training_script_args == ["--servers", "9"]


def test_torchrun_s_own_spelling_of_the_number_of_processes_is_enough(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert run_options.parse(["--nproc_per_node", "4", "script.py"]).cluster.servers == 4
    monkeypatch.setenv("PET_NPROC_PER_NODE", "6")
    monkeypatch.setenv("PET_MAX_RESTARTS", "3")
    options = run_options.parse(["script.py"])
    assert options.cluster.servers == 6
    assert options.torchrun.max_restarts == 3


def test_every_option_of_torchrun_is_an_option_of_run() -> None:
    from torch.distributed.run import get_args_parser

    ours = set(run_parser.make_parser()._option_string_actions)
    assert set(get_args_parser()._option_string_actions) < ours


def test_an_option_after_the_script_belongs_to_the_script() -> None:
    options = run_options.parse(["--servers", "4", "script.py", "--json", "--degree", "x"])
    assert not options.json
    assert options.torchrun.training_script_args == ["--json", "--degree", "x"]
    with refused(InputError, "invalid int value"):
        run_options.parse(["--servers", "4", "--degree", "x", "script.py"])


def test_an_option_of_the_script_may_begin_as_several_of_ours() -> None:
    own = ["--op", "sum", "--n", "2", "--no=1"]
    options = run_options.parse(["--servers", "4", "script.py", *own])
    assert options.torchrun.training_script_args == own


def _options(*, with_value: bool) -> list[argparse.Action]:
    """The options of `run`, torchrun's too, but for help and names of
    earlier versions, which end the command."""
    return [
        action
        for action in run_parser.make_parser()._actions
        if action.option_strings
        and action.dest not in ("help", "help_torchrun", "print_completion")
        and not isinstance(action, Renamed)
        and (action.nargs != 0) == with_value
    ]


def _value(action: argparse.Action) -> str:
    """One that the option takes."""
    parse: Any = action.type if callable(action.type) else str
    for text in [*(action.choices or ()), "1", "1GB", "1Gbps", "1:2", "gloo"]:
        with contextlib.suppress(argparse.ArgumentTypeError, ValueError):
            parse(text)
            return text
    raise AssertionError(f"no value for {action.option_strings[0]}")


OWN = ["--plan", "mine.json"]  # of the script; there is no such file


@pytest.mark.parametrize(
    "flag", [name for action in _options(with_value=False) for name in action.option_strings]
)
def test_after_every_flag_the_script_has_its_own_plan(flag: str) -> None:
    words = ["--servers", "4", flag, "script.py", *OWN]
    if flag in ("--measure", "--no-python", "--no_python"):  # this script is no model, no program
        with refused(InputError, "measure" if flag == "--measure" else "script.py"):
            run_options.parse(words)
        return
    options = run_options.parse(words)
    assert options.plan is None
    assert options.torchrun.training_script_args == OWN


@pytest.mark.parametrize("equals", [False, True], ids=["VALUE", "=VALUE"])
@pytest.mark.parametrize(
    ("name", "value"),
    [(name, _value(a)) for a in _options(with_value=True) for name in a.option_strings],
)
def test_after_every_value_the_script_has_its_own_plan(
    name: str, value: str, equals: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = [f"{name}={value}"] if equals and name.startswith("--") else [name, value]
    words += ["script.py", *OWN]
    parsed = run_parser.make_parser().parse_args(words)
    assert (parsed.training_script, parsed.training_script_args) == ("script.py", OWN)
    opened: list[str] = []
    monkeypatch.setattr(documents, "load", lambda _, path: opened.append(path))
    with contextlib.suppress(InputError, DocumentError, FabricError):  # of the option alone
        run_options.parse(words if name == "--servers" else ["--servers", "4", *words])
    assert "mine.json" not in opened


def test_the_plan_is_found_between_options_of_torchrun() -> None:
    own = ["--log-dir", "logs", "--plan", "plan.json", "--standalone"]
    options = run_options.parse([*own, "script.py", "--plan", "mine.json"])
    assert options.plan is not None
    assert options.torchrun.training_script_args == ["--plan", "mine.json"]


def test_torchrun_s_variables_are_read_before_the_script_is_judged(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "package").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PET_MODULE", "1")
    assert run_options.parse(["--servers", "4", "package.train"]).torchrun.module


def test_a_module_that_is_nowhere_is_named() -> None:
    with refused(InputError, "-m", "nowhere.train"):
        run_options.parse(["--servers", "4", "-m", "nowhere.train"])


def test_help_torchrun_shows_its_options(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        run_options.parse(["--help-torchrun"])
    assert stop.value.code == 0
    assert "--rdzv-backend" in capsys.readouterr().out


def test_namespaces_without_root_are_refused_before_anything_starts(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    program = folder / "an env" / "bin" / "topoopt"
    program.parent.mkdir(parents=True)
    program.write_text("")
    program.chmod(0o755)
    monkeypatch.setattr("sys.argv", [str(program)])
    assert main(["run", "--servers", "4", "--fabric", "netns", "script.py"]) == 2
    # with its path: sudo does not look where this shell does
    assert capsys.readouterr().err == (
        "topoopt: error: netns: needs root for network namespaces; start it with "
        "sudo 'an env/bin/topoopt' ..., or use --fabric loopback\n"
    )
    assert not (folder / "runs").exists()


def test_the_options_of_torchrun_are_known_without_importing_it() -> None:
    theirs = torch.distributed.run.get_args_parser()._option_string_actions
    assert set(theirs) - {"-h", "--help"} <= run_parser.torchrun_spellings()


def test_a_misspelt_option_is_refused_before_torch_is_imported() -> None:
    code = (
        "import sys; from torch_topoopt.launcher.main import main; "
        "code = main(sys.argv[1:]); print(code, 'torch' in sys.modules)"
    )
    for word, near in (("--serverz=4", "--servers"), ("--nnodez=4", "--nnodes")):
        ended = subprocess.run(
            [sys.executable, "-c", code, "run", word, "script.py"],
            capture_output=True, text=True, timeout=limit_s(60), check=True,
        )  # fmt: skip
        assert ended.stdout.split() == ["2", "False"]
        assert named(ended.stderr, word.partition("=")[0], near)
