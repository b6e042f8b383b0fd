"""Passwords come from safe places only and show nothing of themselves."""

from __future__ import annotations

import base64
import copy
import json
import os
import pickle
import traceback
from typing import TYPE_CHECKING
from urllib.parse import quote

import pytest
from support.refusals import refused

from torch_topoopt.fabric.credentials import CredentialError, Password, PasswordSource, scrub
from torch_topoopt.plan.codec import DocumentError

if TYPE_CHECKING:
    from pathlib import Path

SECRET = 'pa"ss w/örd+1'


def _file(path: Path, text: str, mode: int = 0o600) -> PasswordSource:
    path.write_text(text)
    path.chmod(mode)
    return PasswordSource(file=str(path))


def test_it_is_read_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SWITCH_PASSWORD", SECRET)
    assert PasswordSource(env="SWITCH_PASSWORD").read().reveal() == SECRET


@pytest.mark.parametrize("mode", [0o600, 0o400])
def test_it_is_read_from_a_file_without_its_last_newline(tmp_path: Path, mode: int) -> None:
    assert _file(tmp_path / "a", f"{SECRET}\n", mode).read() == Password(SECRET)
    assert _file(tmp_path / "b", f"{SECRET}\r\n", mode).read() == Password(SECRET)
    assert _file(tmp_path / "c", f" {SECRET} ", mode).read().reveal() == f" {SECRET} "


def test_a_file_under_the_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    _file(tmp_path / "secret", SECRET)
    assert PasswordSource(file="~/secret").read().reveal() == SECRET


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o620])
def test_a_file_that_others_can_read_or_write_is_refused(tmp_path: Path, mode: int) -> None:
    with refused(CredentialError, "secret", f"mode {mode:03o}", "chmod 600"):
        _file(tmp_path / "secret", SECRET, mode).read()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_file_of_another_user_is_refused(tmp_path: Path) -> None:
    source = _file(tmp_path / "secret", SECRET)
    os.chown(tmp_path / "secret", 4321, -1)
    with refused(CredentialError, "user 4321", "user 0"):
        source.read()


def test_what_is_not_a_password_is_said_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NOT_SET", raising=False)
    monkeypatch.setenv("EMPTY", "")
    os.mkfifo(tmp_path / "pipe", 0o600)
    binary = tmp_path / "binary"
    binary.write_bytes(b"\xff\xfe")
    binary.chmod(0o600)
    for source, tokens in [
        (PasswordSource(env="NOT_SET"), ("NOT_SET",)),
        (PasswordSource(env="EMPTY"), ("EMPTY", "empty")),
        (PasswordSource(file=str(tmp_path / "none")), ("none", "No such file")),
        (PasswordSource(file=str(tmp_path)), ("regular file",)),
        (PasswordSource(file=str(tmp_path / "pipe")), ("regular file",)),
        (PasswordSource(file=str(binary)), ("text file",)),
        (_file(tmp_path / "empty", "\n"), ("empty",)),
        (_file(tmp_path / "two", "a\nb\n"), ("one line",)),
        (_file(tmp_path / "long", "x" * 5000), (4096,)),
    ]:
        with refused(CredentialError, *tokens) as caught:
            source.read()
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("source", "tokens"),
    [
        (PasswordSource(), ("neither",)),
        (PasswordSource(env="A", file="b"), ("both",)),
        (PasswordSource(env=""), ("env",)),
        (PasswordSource(file=""), ("file",)),
    ],
)
def test_just_one_source_must_be_given(source: PasswordSource, tokens: tuple[object, ...]) -> None:
    with refused(DocumentError, "switches[0].password", *tokens):
        source.validate("switches[0].password")
    with refused(DocumentError, *tokens):
        source.read()


def test_a_password_shows_nothing() -> None:
    password = Password(SECRET)
    shown = f"{password} {password!r} {password!s} {password:>9} {[password]} %s" % password
    try:
        raise ValueError(password)
    except ValueError as error:
        shown += "".join(traceback.format_exception(error))
    assert SECRET not in shown
    assert "***" in shown
    for give_away in (pickle.dumps, copy.copy, copy.deepcopy):
        with refused(TypeError, "pickled") as caught:
            give_away(password)
        assert SECRET not in str(caught.value)
    with pytest.raises(TypeError):
        json.dumps(password)


def test_passwords_compare_by_their_secret() -> None:
    assert Password("a") == Password("a")
    assert hash(Password("a")) == hash(Password("a"))
    assert Password("a") != Password("b")
    assert Password("a") != "a"


def test_scrub_takes_every_spelling_out() -> None:
    basic = base64.b64encode(f"admin:{SECRET}".encode()).decode()
    text = " ".join(
        [SECRET, quote(SECRET), quote(SECRET, safe=""), json.dumps(SECRET), repr(SECRET), basic]
    )
    clean = scrub(f"start {text} end", Password(SECRET), "admin")
    assert clean.startswith("start *** ")
    assert clean.endswith(" *** end")
    for part in ("ss w", "rd+1", "%20w", basic[4:20]):
        assert part not in clean
    assert scrub("nothing here", Password(SECRET), "admin") == "nothing here"
    assert scrub("as it was", Password("")) == "as it was"
