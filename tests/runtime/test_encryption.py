"""What TOPOOPT_ENCRYPT and --encrypt need."""

from __future__ import annotations

from typing import TYPE_CHECKING

from support.refusals import refused

from torch_topoopt.launcher.errors import InputError
from torch_topoopt.launcher.run import run
from torch_topoopt.links.errors import FabricError
from torch_topoopt.runtime import versions
from torch_topoopt.runtime.link_options import requested_links
from torch_topoopt.runtime.versions import BuildInfo, versions_text

if TYPE_CHECKING:
    import pytest

WITHOUT_OPENSSL = ("OpenSSL", "apt-get install libssl-dev", "pip install")


def build(monkeypatch: pytest.MonkeyPatch, openssl: str) -> None:
    monkeypatch.setattr(versions, "build_info", lambda: BuildInfo("2.15.0", openssl=openssl))


def test_a_build_with_openssl_encrypts(monkeypatch: pytest.MonkeyPatch) -> None:
    build(monkeypatch, "3.0.19")
    monkeypatch.setenv("TOPOOPT_ENCRYPT", "1")
    assert requested_links(None).encrypted


def test_a_build_without_openssl_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    build(monkeypatch, "")
    monkeypatch.setenv("TOPOOPT_ENCRYPT", "1")
    with refused(FabricError, "TOPOOPT_ENCRYPT", *WITHOUT_OPENSSL):
        requested_links(None)
    with refused(InputError, "encrypt", *WITHOUT_OPENSSL):
        run.main(["--servers", "2", "--degree", "1", "--model", "none", "--encrypt", __file__])


def test_the_versions_tell_whether_links_can_be_encrypted(monkeypatch: pytest.MonkeyPatch) -> None:
    build(monkeypatch, "")
    assert "no OpenSSL (needed to encrypt links)" in versions_text()
    build(monkeypatch, "3.0.19")
    assert "OpenSSL 3.0.19" in versions_text()
