"""The source of a job's secret, and the permission to read it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from support.refusals import refused

from torch_topoopt.links.errors import FabricError
from torch_topoopt.links.rank_links import job_secret
from torch_topoopt.links.secret import SECRET_VARIABLE, sign, verified, write_secret

if TYPE_CHECKING:
    from pathlib import Path


class OneMeeting:
    """Ranks of one process, in turn."""

    def __init__(self) -> None:
        self.texts: dict[str, str] = {}

    def publish(self, topic: str, text: str) -> None:
        self.texts[topic] = text

    def collect(self, topic: str, ranks: Any, deadline: float) -> dict[int, str]:
        return dict.fromkeys(ranks, self.texts[topic])


def test_rank_0_makes_a_secret_up_anew_for_every_job(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(SECRET_VARIABLE, raising=False)
    first, second = OneMeeting(), OneMeeting()
    secrets = {job_secret(meeting, rank, 0.0) for meeting in (first, second) for rank in (0, 1)}
    assert len(secrets) == 2
    assert {len(secret) for secret in secrets} == {32}


def test_a_secret_in_a_file_is_published_nowhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_secret(tmp_path)
    text = path.read_text()
    path.write_text(text + "\n")
    monkeypatch.setenv(SECRET_VARIABLE, str(path))
    meeting = OneMeeting()
    assert job_secret(meeting, 0, 0.0) == bytes.fromhex(text)
    assert meeting.texts == {}


@pytest.mark.parametrize(
    ("text", "mode", "tokens"),
    [
        (None, 0, ("No such file",)),
        ("ab" * 32, 0o640, ("chmod 600",)),
        ("ab" * 31, 0o600, (64, "hexadecimal")),
        ("ab" * 33, 0o600, (64, "hexadecimal")),
        ("xy" * 32, 0o600, (64, "hexadecimal")),
    ],
)
def test_a_bad_file_of_a_secret_is_one_line(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    text: str | None,
    mode: int,
    tokens: tuple[object, ...],
) -> None:
    path = tmp_path / "secret"
    if text is not None:
        path.write_text(text)
        path.chmod(mode)
    monkeypatch.setenv(SECRET_VARIABLE, str(path))
    with refused(FabricError, "TOPOOPT_SECRET_FILE", *tokens) as caught:
        job_secret(OneMeeting(), 0, 0.0)
    assert "ab" * 5 not in str(caught.value)


def test_a_text_that_was_signed_is_read_and_no_other_is() -> None:
    mine, other = bytes(32), bytes(range(32))
    signed = sign(mine, "plan/1/0", "a plan")
    assert verified(mine, "plan/1/0", signed) == "a plan"
    for secret, topic, text in (
        (other, "plan/1/0", signed),
        (mine, "plan/1/1", signed),  # said by another rank
        (mine, "plan/1/0", signed.replace("a plan", "a plot")),
        (mine, "plan/1/0", "a plan"),
        (mine, "plan/1/0", ""),
    ):
        with refused(FabricError, topic, "not signed"):
            verified(secret, topic, text)


def test_without_a_secret_nothing_is_signed_and_what_is_signed_is_an_error() -> None:
    assert verified(None, "plan/1/0", sign(None, "plan/1/0", "a plan")) == "a plan"
    with refused(FabricError, "TOPOOPT_SECRET_FILE", "others"):
        verified(None, "plan/1/0", sign(bytes(32), "plan/1/0", "a plan"))
