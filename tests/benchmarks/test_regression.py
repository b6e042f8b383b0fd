"""The comparison with an older commit: what counts as slower, and trees that cannot run a case."""

from __future__ import annotations

from pathlib import Path

import pytest
import regression
from regression import CaseError, Comparison


@pytest.mark.parametrize(
    ("now", "verdict"),
    [
        ((1.02, 1.03, 1.10), "slower"),
        ((0.9, 0.95, 0.98), "faster"),
        ((0.99, 1.2, 1.3), ""),  # one round disagrees
        ((1.001, 1.002, 1.003), ""),  # too little to be a change
    ],
)
def test_a_case_is_slower_only_if_all_rounds_agree(now: tuple[float, ...], verdict: str) -> None:
    assert Comparison("case", (1.0, 1.0, 1.0), now).verdict == verdict


@pytest.mark.parametrize(("predicted", "named"), [(0.8, []), (1.0, ["plan"]), (1.2, ["plan"])])
def test_more_planning_is_slower_only_if_the_plan_is_no_faster(
    predicted: float, named: list[str]
) -> None:
    iteration = Comparison("plan: predicted iteration", (1.0, 1.0), (predicted, predicted))
    found = regression.slower([Comparison("plan", (1.0, 1.0), (2.0, 2.0)), iteration])
    assert found[:1] == named


def test_rounds_alternate_and_a_case_that_fails_is_left_out(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    before, now = Path("before"), Path("now")
    calls: list[tuple[str, Path]] = []

    def measured(case: str, tree: Path, _scratch: Path) -> dict[str, float]:
        calls.append((case, tree))
        if case == "new" and tree == before:
            raise CaseError("no such option")
        return {case: 2.0 if tree == now else 1.0}

    monkeypatch.setattr(regression, "measure", measured)
    (found,) = regression.compare((before, now), ["old", "new"], 2)
    assert (found.name, found.before, found.now) == ("old", (1.0, 1.0), (2.0, 2.0))
    assert [tree for case, tree in calls if case == "old"] == [before, now, now, before]
    assert "new: left out: no such option" in capsys.readouterr().err


def test_bad_input_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert regression.main(["HEAD", "--only", "nonsense"]) == 2
    assert "'nonsense'" in capsys.readouterr().err
    assert regression.main(["no-such-commit", "--only", "plan"]) == 2
    assert "no-such-commit" in capsys.readouterr().err
