"""What TOPOOPT_ENCRYPT and --encrypt need."""

from __future__ import annotations

from typing import TYPE_CHECKING

from support.refusals import named, refused

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
<<<<<<< HEAD:tests/runtime/test_encryption.py
    assert requested_links(None).encrypted
=======
    assert encryption_asked()
    monkeypatch.setenv("TOPOOPT_ENCRYPT", "yes")
    with refused(FabricError, "TOPOOPT_ENCRYPT", "yes", 0):
        encryption_asked()
>>>>>>> jobs:tests/runtime/link_options/test_encryption.py


def test_a_build_without_openssl_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    build(monkeypatch, "")
    monkeypatch.setenv("TOPOOPT_ENCRYPT", "1")
<<<<<<< HEAD:tests/runtime/test_encryption.py
    with pytest.raises(FabricError, match=f"TOPOOPT_ENCRYPT: {_WITHOUT}"):
        requested_links(None)
    with pytest.raises(InputError, match=f"encrypt: {_WITHOUT}"):
=======
    with refused(FabricError, "TOPOOPT_ENCRYPT", *WITHOUT_OPENSSL):
        encryption_asked()
    with refused(InputError, "encrypt", *WITHOUT_OPENSSL):
>>>>>>> jobs:tests/runtime/link_options/test_encryption.py
        run.main(["--servers", "2", "--degree", "1", "--model", "none", "--encrypt", __file__])


def test_the_versions_tell_whether_links_can_be_encrypted(monkeypatch: pytest.MonkeyPatch) -> None:
    build(monkeypatch, "")
    assert named(versions_text(), "no OpenSSL")
    build(monkeypatch, "3.0.19")
    assert "OpenSSL 3.0.19" in versions_text()
