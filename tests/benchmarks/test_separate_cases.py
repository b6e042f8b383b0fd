"""Cases in processes of their own, and files of results that a run goes on with."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING

import pytest
import topology
from support.refusals import refused

from harness import separate_cases

if TYPE_CHECKING:
    from pathlib import Path


def test_a_case_in_a_process_of_its_own_or_the_reason_why_not() -> None:
    case = {"servers": 6, "degree": 3, "ports": "simplex", "mode": "released", "options": {}}
    result = separate_cases.in_a_process(topology.__file__, case, 300)
    assert "no stride number 3 for a group of 6 servers" in result["error"]
    late = separate_cases.in_a_process(topology.__file__, {**case, "servers": 5}, 0.01)
    assert late["error"] == "not done after 0.01 s"
    broken = separate_cases.in_a_process(topology.__file__, {"servers": 5}, 300)
    assert broken["error"].startswith("KeyError: 'degree'")
    cannot_be = {**case, "error": "no such shape"}
    assert separate_cases.in_a_process("no such file", cannot_be, 1) is cannot_be


def test_results_are_kept_after_each_case_and_found_again(tmp_path: Path) -> None:
    path = str(tmp_path / "rows.json")
    first = separate_cases.ResultFile(path, "speed", resume=True)
    assert first.results == []
    case = {"sizes": (1, 2), "seed": 3}
    first.add({**case, "seconds": 0.5})
    first.add({"sizes": (1, 2), "seed": 4, "error": "not done"})
    assert len(json.loads((tmp_path / "rows.json").read_text())["results"]) == 2
    again = separate_cases.ResultFile(path, "speed", resume=True)
    found = again.known(case)
    assert found is not None
    assert found["seconds"] == 0.5
    assert again.known({**case, "seed": 4}) is None  # a case that failed runs again
    assert again.known({**case, "more": 1}) is None
    assert separate_cases.ResultFile(path, "speed", resume=False).known(case) is None


@pytest.mark.parametrize("text", ["[]", "{}", '{"benchmark": "other", "version": 1}'])
def test_a_file_of_something_else_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "rows.json"
    path.write_text(text)
    with refused(ValueError, "speed", "benchmark"):
        separate_cases.ResultFile(str(path), "speed", resume=True)


def test_lists_of_arguments_name_what_is_wrong() -> None:
    choose = separate_cases.choice_of(("vgg", "bert"))
    assert choose("bert,vgg") == ("bert", "vgg")
    with refused(argparse.ArgumentTypeError, "x", "vgg"):
        choose("vgg,x")
    assert separate_cases.numbers("4,8") == (4, 8)
    with refused(argparse.ArgumentTypeError, "4,"):
        separate_cases.numbers("4,")
