"""The file of results of all benchmarks, and the option that appends to it."""

from __future__ import annotations

import dataclasses
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import collectives
import faults
import links
import network_choice
import pytest
from support.limits import limit_s
from support.refusals import refused

from fault_injection.fault_list import FAULTS
from fault_injection.runs import RUN_FAULTS
from fault_injection.trials import GOES_ON, Trial
from harness import results
from harness.results import NOT_NOTED, PAGE_MARK, RESULTS, Result, Results
from harness.settings import Setting
from torch_topoopt.plan.codec import DocumentError

if TYPE_CHECKING:
    from collections.abc import Callable

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
GOOD = Result(
    what="all_reduce of 64 B",
    value=6.5,
    unit="us",
    peer="gloo",
    peer_value=13.0,
    ratio=2.0,
    ratio_range=(1.5, 2.5),
    ratio_of="speed",
    machine="VM, 2 cores",
    date="2026-11-28",
    command="python benchmarks/dispatch.py",
)


def file_of(*found: Result) -> Results:
    return Results(Results.VERSION, found)


def test_the_committed_file_is_valid_and_canonical() -> None:
    document, text = Results.read(RESULTS)
    assert document.to_json() == text
    assert document.results


def with_its_harness(script: Path) -> str:
    """Text of a script and of the modules in `harness` that it imports, where options may be."""
    text = script.read_text()
    modules = re.findall(r"^from harness(?:\.(\w+))? import ([\w, ]+)", text, re.MULTILINE)
    names = {name for module, listed in modules for name in (module, *listed.split(", "))}
    files = [script.parent / "harness" / f"{name}.py" for name in names if name]
    return "\n".join([text, *(file.read_text() for file in files if file.exists())])


def test_benchmarks_in_the_commands_exist_and_have_the_options() -> None:
    for command in {result.command for result in Results.load(RESULTS).results}:
        words = shlex.split(command)
        scripts = [at for at, word in enumerate(words) if word.startswith("benchmarks/")]
        for at in scripts:
            source = with_its_harness(BENCHMARKS.parent / words[at])
            options = [word for word in words[at + 1 :] if re.match(r"--?[a-zA-Z]", word)]
            assert not [option for option in options if f'"{option}"' not in source], command


def test_files_in_the_commands_exist() -> None:
    for command in {result.command for result in Results.load(RESULTS).results}:
        for word in shlex.split(command):
            if word.startswith(("tests/", "examples/")):
                assert (BENCHMARKS.parent / word).exists(), command


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("what", " "),
        ("what", "word " * 16),
        ("what", "a | b"),
        ("peer", ""),
        ("value_range", (2.0, 1.0)),
        ("ratio_range", (1.0,)),
        ("ratio_of", ""),
        ("date", "yesterday"),
        ("machine", ""),
        ("command", "rm results"),
    ],
)
def test_a_wrong_field_is_named(field: str, value: Any) -> None:
    assert GOOD.problem() == ""
    with pytest.raises(DocumentError) as refused:
        file_of(GOOD, dataclasses.replace(GOOD, **{field: value})).validate()
    assert str(refused.value).startswith(f"results[1].{field}: ")


def test_a_result_needs_a_value_or_an_outcome() -> None:
    changed = {"value": None, "peer_value": None, "ratio": None, "ratio_range": None}
    empty = dataclasses.replace(GOOD, **changed, ratio_of="")
    assert empty.problem().startswith("value: ")
    assert dataclasses.replace(empty, outcome="equal").problem() == ""
    assert dataclasses.replace(GOOD, outcome="equal").problem().startswith("value: ")


def test_unknown_fields_are_refused() -> None:
    text = file_of(GOOD).to_json().replace('"what"', '"which"')
    with refused(DocumentError, "results[0].which"):
        Results.from_json(text)


def test_the_table_has_the_results_of_a_benchmark_beside_each_other() -> None:
    same = dataclasses.replace(GOOD, what="same command")
    other = dataclasses.replace(GOOD, what="other", command="make demo", date=NOT_NOTED)
    again = dataclasses.replace(
        GOOD, what="again", command="sudo .venv/bin/python benchmarks/dispatch.py --pin"
    )
    lines = file_of(GOOD, other, again, same).table().splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    assert rows[0] == ["what", "value", "peer", "ratio", "machine", "date", "command"]
    assert [row[0] for row in rows[2:]] == ["all_reduce of 64 B", "same command", "again", "other"]
    assert rows[2][1:4] == ["6.5 us", "gloo: 13 us", "2 (1.5 to 2.5) x as fast"]
    assert rows[2][4:] == ["VM, 2 cores", "2026-11-28", "`python benchmarks/dispatch.py`"]
    assert rows[3][4:] == ["", "", ""], "as in the row above"
    assert rows[5][5:] == [NOT_NOTED, "`make demo`"]


def test_a_page_gets_the_table_where_its_mark_is() -> None:
    page = results.with_table(f"before\n\n{PAGE_MARK}\n\nafter")
    assert PAGE_MARK not in page
    rows = [line for line in page.splitlines() if line.startswith("| ")]
    assert len(rows) == 2 + len(Results.load(RESULTS).results)
    assert results.with_table("no mark") == "no mark"


def test_results_are_appended(tmp_path: Path) -> None:
    path = str(tmp_path / "results.json")
    later = dataclasses.replace(GOOD, what="later")
    results.record(path, [GOOD])
    results.record(path, [later])
    assert Results.load(path).results == (GOOD, later)
    with refused(DocumentError, "date"):
        results.record(path, [dataclasses.replace(GOOD, date="")])
    assert Results.load(path).results == (GOOD, later)


def run(script: str, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, BENCHMARKS / script, *options],
        capture_output=True,
        text=True,
        timeout=limit_s(120),
    )


@pytest.mark.parametrize(
    ("script", "options", "count"),
    [
        ("dispatch.py", ("--calls", "20", "--rounds", "1"), 1),
        ("overhead.py", ("--start-up", "--start-ranks", "2", "--rounds", "1"), 2),
        (
            "collectives.py",
            ("--on", "shared-memory", "-b", "64", "-e", "64", "--rounds", "1", "--peers", "gloo"),
            1,
        ),
    ],
)
def test_a_benchmark_records_its_results(
    script: str, options: tuple[str, ...], count: int, tmp_path: Path
) -> None:
    path = tmp_path / "results.json"
    files = ("--record", str(path), "-J", str(tmp_path / "all.json"))
    done = run(script, *files, *options)
    assert done.returncode == 0, done.stderr
    found = Results.load(path).results
    assert len(found) == count
    for result in found:
        assert result.command.endswith(f"python benchmarks/{script} {' '.join(options)}")
        assert result.value is not None
        assert result.ratio is not None
        assert result.peer
        assert result.date != NOT_NOTED


def test_a_file_of_something_else_is_refused_before_anything_is_measured(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    path.write_text("[]")
    for name in (path, tmp_path / "missing" / "results.json"):
        done = run("dispatch.py", "--record", str(name))
        assert done.returncode == 2
        assert f"argument --record: {name}" in done.stderr
        assert "all_reduce of" not in done.stdout
    assert path.read_text() == "[]"


def test_collectives_of_another_launcher_are_not_recorded(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as ended:
        collectives.parse_arguments(["--record"])
    assert ended.value.code == 2
    assert "--record" in capsys.readouterr().err


def of_collectives() -> list[Result]:
    place = "direct fabric, 12 hosts x 4 links of 25 Mb/s, MTU 1500, goodput of a link 2.8 MB/s"
    options = collectives.parse_arguments(["--on", "shared-memory"])
    table = collectives.Table(Setting(place, 12, {}), options, ["topoopt", "gloo"])
    entry = {"operation": "reduce_scatter", "size": 1 << 24, "time": 5.0}
    table.results.append({**entry, "gloo": {"ratio": 3.0}, "of_bound": 0.9})
    return table.results_to_record()


def of_faults() -> list[Result]:
    trial = Trial(GOES_ON, detected_s=0.25, over_s=0.5)
    every = FAULTS | RUN_FAULTS
    return faults.results_to_record([faults.Row(f, "topoopt", [trial]) for f in every.values()])


def of_links() -> list[Result]:
    sample = links.Sample(2e9, 1.0, 0.8)
    names = ("ours 4", "threads 4", "zerocopy 4", "iperf3 4", "socket", "messages", "copy")
    place = "messages of 16.8 MB, loopback"
    return links.results_to_record(place, {name: [sample] for name in names})


def of_choices() -> list[Result]:
    seconds = {16: [1e-5, 2e-5], 8 << 20: [0.1, 0.2]}
    found = {name: network_choice.Times(seconds, ["eth0"]) for name in network_choice.CHOICES}
    return network_choice.results_of(network_choice.Case("triangle", 0.1, 0.1), found)


@pytest.mark.parametrize(
    ("make", "count"), [(of_collectives, 2), (of_links, 14), (of_choices, 2), (of_faults, 60)]
)
def test_results_of_every_kind_are_valid(make: Callable[[], list[Result]], count: int) -> None:
    found = make()
    assert len(found) >= count
    file_of(*found).validate()
