"""Files and options out of all bounds: one short line, exit code 2, and nothing allocated for them.

Every case here once ended in a traceback, in the memory of the whole machine, or in minutes of
silence.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from support.launcher import COMMAND
from support.limits import limit_s
from support.refusals import refused

from torch_topoopt.fabric.cluster_file import strict_yaml
from torch_topoopt.launcher.errors import InputError
from torch_topoopt.launcher.main import main
from torch_topoopt.launcher.plan import strategy_files
from torch_topoopt.launcher.run.folder import RunFolder
from torch_topoopt.op_graph import OpGraph
from torch_topoopt.plan import Plan, limits
from torch_topoopt.plan.codec import DocumentError
from torch_topoopt.sim import flows

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

LONGEST = 400  # characters of a message about one value
DEEP = 100_000
LIMIT_S = limit_s(100)


def _refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The one line of a command that refuses its input."""
    assert main(list(arguments)) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1, lines
    assert len(lines[0]) < 1500
    return lines[0].removeprefix("topoopt: error: ")


@pytest.mark.parametrize(
    ("scalar", "message"),
    [
        ("!!int abc", "line 2: 'abc' is no int"),
        ("!!float x", "line 2: 'x' is no float"),
        ("!!bool maybe", "line 2: 'maybe' is no bool"),
        ("!!timestamp 2020-99-99", "line 2: '2020-99-99' is no timestamp"),
        ("!!timestamp x", "line 2: 'x' is no timestamp"),
        ("9" * 5000, f"line 2: '{'9' * 79}... (5002 characters) is no int"),
    ],
)
def test_a_scalar_that_does_not_parse_names_its_line(scalar: str, message: str) -> None:
    with pytest.raises(DocumentError) as error:
        strict_yaml.parse(f"name: lab\nversion: {scalar}\n")
    assert str(error.value) == message


@pytest.mark.parametrize("text", ["{a: " * DEEP + "1" + "}" * DEEP, "[" * DEEP + "]" * DEEP])
def test_yaml_that_is_nested_too_deeply(text: str) -> None:
    with refused(DocumentError, "YAML", "nested"):
        strict_yaml.parse(text)


@pytest.mark.parametrize("kind", [Plan, OpGraph])
@pytest.mark.parametrize("text", ['{"a":' * DEEP + "1" + "}" * DEEP, "[" * DEEP + "]" * DEEP])
def test_json_that_is_nested_too_deeply(kind: type[Plan | OpGraph], text: str) -> None:
    with refused(DocumentError, "nested"):
        kind.from_json(text)


def test_files_that_are_no_documents_may_be_nested_too_deeply_as_well(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    text = '{"a":' * DEEP + "1" + "}" * DEEP
    (tmp_path / "deep.json").write_text(text)
    said = _refused(capsys, "discover", "--hostfile", str(tmp_path / "deep.json"))
    assert said.endswith("deep.json: not an MLX hostfile: nested too deeply")
    with refused(DocumentError, "nested"):
        strategy_files._json_document(text)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"servers": 10**9}, "servers: 1000000000 is more than 8192: tables over all pairs would"),
        ({"servers": 10**30}, "servers: a number of more than 20 digits is more than 8192: "),
        ({"degree": 10**9}, "degree: 1000000000 asks for more than 4194304 ports: they would take"),
        ({"accelerators_per_server": 10**9}, "accelerators_per_server: 1000000000 asks for more"),
        ({"servers": "y" * 10_000}, "cluster.servers: expected int, got 'yyyy"),
        ({"y" * 10_000: 1}, "cluster.yyyy"),
        ({"ports": "y" * 10_000}, "cluster.ports: 'yyyy"),
    ],
)
def test_a_plan_for_more_than_there_can_be_is_refused_before_anything_is_made_for_it(
    changed: dict[str, Any], message: str, ring_plan: Callable[[int], Plan]
) -> None:
    document = json.loads(ring_plan(4).to_json())
    document["cluster"].update(changed)
    with pytest.raises(DocumentError) as error:
        Plan.from_json(json.dumps(document))
    assert str(error.value).startswith(message)
    assert len(str(error.value)) < LONGEST


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            "topology --degree 4 --servers 100000000000",
            "--servers: 100000000000 is more than 8192: ",
        ),
        (
            "topology --degree 4 --servers 1000000",
            "--servers: 1000000 is more than 8192: tables over",
        ),
        (
            "plan vgg:tiny --degree 4 --bandwidth 1Gbps --servers 1000000",
            "--servers: 1000000 is more",
        ),
        (
            "compare vgg:tiny --degree 4 --bandwidth 1Gbps --servers 1000000000",
            "--servers: 10000000",
        ),
        (
            "run --servers 1000000000 --degree 4 here.py",
            "--servers: 1000000000 is more than 8192: ",
        ),
        ("profile here.py --world-size 1000000000", "--world-size: 1000000000 asks for more than"),
    ],
)
def test_a_cluster_that_no_machine_could_plan_is_refused_at_once(
    arguments: str,
    message: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here.py").touch()
    assert _refused(capsys, *arguments.split()).startswith(message)


def test_the_limits_follow_from_one_number() -> None:
    limits.check_servers(limits.MOST_SERVERS)
    with refused(DocumentError, 4.3, 4.29):
        limits.check_servers(limits.MOST_SERVERS + 1)
    limits.check_items(limits.MOST_ITEMS, "n", 3, "nodes")


def test_a_flow_file_with_a_billion_nodes_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "flows.txt"
    path.write_text(
        "nodes 1000000000 hosts 1000000000\nlink 0 0 1 1e9 1\nflow 0 0 1 9 path 1 0 deps 0\n"
    )
    with refused(ValueError, path, "nodes", 1000000000, 4194304):
        flows.read_flows(str(path))
    link = flows.FlowLink(0, 10**9, 1e9)
    with refused(ValueError, "nodes", 1000000001):
        flows.run_flows([link], [flows.Flow(0, 10**9, 1.0, (0,))])


def test_a_run_folder_with_a_name_that_no_file_system_takes(tmp_path: Path) -> None:
    with refused(InputError, "run-dir", "name too long"):
        RunFolder(tmp_path / ("r" * 300), 0.0)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            "run --seed 1 --plan bad.json train.py",
            "bad.json: version: expected an integer from 1 on",
        ),
        ("run --servers 4 nowhere.py", "nowhere.py: no such script"),
        ("run --servers 4 broken.py", "broken.py, line 1: '(' was never closed"),
        ("run --servers 4 --degree x train.py", "--degree: invalid int value: 'x'"),
        ("run --servers 4 --degree 5 train.py", "degree: 5 ports per server cannot reach 3 other"),
        ("run --encrypt train.py", "servers: missing"),
        ("run --servers 4", "required: SCRIPT"),
        ("run --cluster nowhere.yaml train.py", "nowhere.yaml: cannot read this cluster file"),
        ("plan bad.json --servers 4", "bad.json: version: expected an integer from 1 on"),
    ],
)
def test_what_is_wrong_is_refused_before_torch_is_imported(
    tmp_path: Path, words: str, message: str
) -> None:
    (tmp_path / "bad.json").write_text("{}")
    (tmp_path / "broken.py").write_text("print(\n")
    (tmp_path / "train.py").touch()
    code = (
        "import sys; from torch_topoopt.launcher.main import main; "
        f"code = main({words.split()!r}); "
        "sys.exit(99 if 'torch' in sys.modules else code)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path, capture_output=True, text=True, timeout=LIMIT_S, check=False,
    )  # fmt: skip
    assert done.returncode == 2, done.stderr
    assert message in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_terminal_without_utf_8_gets_what_it_can_show(tmp_path: Path) -> None:
    done = subprocess.run(
        [*COMMAND, "topology", "--servers", "8", "--degree", "4"],
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
        cwd=tmp_path, capture_output=True, text=True, timeout=LIMIT_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "?" in done.stdout
    assert done.stdout.isascii()


def test_a_request_that_memory_does_not_suffice_for_is_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from torch_topoopt.launcher.plan import diff

    def greedy(arguments: list[str]) -> int:
        raise MemoryError("Unable to allocate 7.28 TiB")

    monkeypatch.setattr(diff, "main", greedy)
    assert _refused(capsys, "diff") == "out of memory: Unable to allocate 7.28 TiB"


def test_a_message_of_ten_thousand_characters_is_shortened(
    capsys: pytest.CaptureFixture[str],
) -> None:
    said = _refused(capsys, "diff", "x" * 10_000, "y.json")
    assert "characters) ..." in said


def test_brackets_without_end_are_refused_at_any_limit_of_recursion() -> None:
    """PyYAML takes time by the square of the depth."""
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(1_000_000)
    try:
        with refused(DocumentError, "nested"):
            strict_yaml.parse("[" * 5000)
    finally:
        sys.setrecursionlimit(before)


def test_names_and_words_are_shown_in_one_line_of_plain_text(tmp_path: Path) -> None:
    with pytest.raises(DocumentError) as document:
        Plan.from_json('{"version": 4, "a\\n\\u001b[2J": 1}')
    assert str(document.value).startswith(r"'a\n\x1b[2J': unknown field")
    with pytest.raises(DocumentError) as cluster:
        strict_yaml.parse("name: a\x00b")
    assert "\n" not in str(cluster.value)
    path = tmp_path / "flows.txt"
    path.write_bytes(b"nodes 2 hosts 2\n\x80\x1b[2J\n")
    with refused(ValueError, "line 2", "\\x80\\x1b[2J"):
        flows.read_flows(str(path))
