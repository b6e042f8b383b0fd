"""Entries of cluster files become drivers, and what is wrong with one is said in one line."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from typing import Any

import pytest
from support.limits import limit_s
from support.refusals import refused

from torch_topoopt.fabric.cluster_file.entries import SwitchEntry
from torch_topoopt.fabric.credentials import PasswordSource
from torch_topoopt.fabric.switches.memory_switch import MemorySwitch
from torch_topoopt.fabric.switches.open_switch import DRIVERS, is_duplex, open_switch
from torch_topoopt.fabric.switches.sonic_ocs import SonicOcs
from torch_topoopt.fabric.switches.switch import SwitchError
from torch_topoopt.plan.codec import DocumentError


def _entry(kind: str, **fields: Any) -> SwitchEntry:
    return SwitchEntry("ocs0", kind, fields.pop("address", "10.0.0.9"), **fields)


def test_an_unknown_kind_names_the_known_ones() -> None:
    with refused(DocumentError, "ocs0", "kind", "sonic"):
        open_switch(_entry("sonic"))
    with refused(DocumentError, "polatis-restconf"):
        open_switch(_entry("polatis-restcnof"))


@pytest.mark.parametrize("kind", DRIVERS)
def test_every_kind_has_a_driver_that_names_an_option_it_does_not_know(kind: str) -> None:
    login = {"user": "admin"} if kind == "telescent" else {}
    entry = _entry(kind, sockets=("1", "2"), options={"frobnicate": 1}, **login)
    with refused(DocumentError, "options.frobnicate", kind):
        open_switch(entry)


@pytest.mark.parametrize(
    ("kind", "options", "duplex"),
    [("memory", {}, False), ("memory", {"duplex": True}, True), ("manual", {}, True)],
)
def test_the_kind_says_whether_circuits_are_duplex(
    kind: str, options: dict[str, Any], *, duplex: bool
) -> None:
    entry = _entry(kind, sockets=("1", "2"), options=options)
    assert is_duplex(entry) is duplex
    assert open_switch(entry).capabilities().duplex is duplex


def test_a_library_that_is_not_installed_is_named_with_its_extra(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with refused(DocumentError, "ocs0", "kind", "torch-topoopt[ocs]"):
        open_switch(_entry("telescent", sockets=("1", "2"), user="admin"))


def test_a_sonic_switch() -> None:
    switch = open_switch(
        _entry(
            "sonic-ocs",
            user="admin",
            password=PasswordSource(env="OCS"),
            options={"insecure": True, "timeout_s": 5, "poll_s": 0.1},
        )
    )
    assert isinstance(switch, SonicOcs)
    assert switch.name == "ocs0"
    switch.close()


def test_a_memory_switch_has_the_sockets_of_its_entry() -> None:
    switch = open_switch(_entry("memory", sockets=("2", "11"), options={"duplex": True}))
    assert isinstance(switch, MemorySwitch)
    assert switch.fibres("11") == ("11", "11")
    with refused(SwitchError, 12):
        switch.fibres("12")


@pytest.mark.parametrize(
    ("options", "tokens"),
    [
        ({"inscure": True}, ("options.inscure", "sonic-ocs", "insecure")),
        ({"insecure": "yes"}, ("options.insecure", "yes")),
        ({"timeout_s": "5"}, ("options.timeout_s", "'5'")),
        ({"timeout_s": 0}, ("options.timeout_s", 0)),
        ({"patience_s": True}, ("options.patience_s", True)),
        ({"ca_file": 1}, ("options.ca_file", 1)),
    ],
)
def test_a_wrong_option_is_named(options: dict[str, Any], tokens: tuple[object, ...]) -> None:
    with refused(DocumentError, "ocs0", *tokens):
        open_switch(_entry("sonic-ocs", options=options))


def test_an_address_or_user_that_cannot_be_is_named() -> None:
    with refused(SwitchError, "ocs0", "address"):
        open_switch(_entry("sonic-ocs", address="telnet://ocs"))
    with refused(SwitchError, "ocs0", "user", "password"):
        open_switch(_entry("sonic-ocs", user="admin"))


def test_no_protocol_library_is_imported_before_it_is_needed() -> None:
    libraries = ("httpx", "asyncssh", "paramiko", "cryptography", "yaml", "pyroute2")
    script = f"""
import sys
import torch_topoopt.launcher.main, torch_topoopt.launcher.fabric.fabric
import torch_topoopt.fabric.loopback, torch_topoopt.fabric.switches.open_switch
import torch_topoopt.fabric.switches.sonic_ocs
import torch_topoopt.fabric.switches.telescent, torch_topoopt.fabric.switches.manual_panel
loaded = [name for name in {libraries!r} if name in sys.modules]
assert not loaded, loaded
"""
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        timeout=limit_s(60),
        check=False,
    )
    assert done.returncode == 0, done.stderr
