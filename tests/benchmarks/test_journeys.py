"""`benchmarks/journeys.py`: what counts as done, and what is cleaned up."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import journeys
import pytest

if TYPE_CHECKING:
    from pathlib import Path


def test_a_journey_ends_at_its_first_error_and_says_why(tmp_path: Path) -> None:
    mark = tmp_path / "after"
    journey = journeys.Journey("x", "?", "echo why\nfalse\necho on", after=f"touch {mark}")
    found = journeys.timed(journey, journeys.ROOT)
    assert (found.seconds, found.processor_s, found.said) == (None, None, "why")
    assert mark.exists()


def test_preparations_are_not_timed_and_their_failure_is_one_of_the_journey() -> None:
    found = journeys.timed(
        journeys.Journey("x", "?", "true", before="echo no; false"), journeys.ROOT
    )
    assert (found.seconds, found.said) == (None, "no")


def test_a_wrong_option_is_named_within_the_journey(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "journeys.json"
    assert journeys.main(["--only", "typo", "-J", str(file)]) == 0
    (found,) = json.loads(file.read_text())["journeys"]
    assert found["seconds"] > 0
    assert "a misspelt option is named" in capsys.readouterr().out


def test_an_unknown_journey_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        journeys.main(["--only", "typo,home"])
    assert "--only: 'home' is not one of demo, advise" in capsys.readouterr().err
