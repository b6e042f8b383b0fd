"""What the kernel says about this host, while its interfaces come and go."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch_topoopt.discovery.interfaces import Interface
from torch_topoopt.tools.doctor import kernel

if TYPE_CHECKING:
    import pytest


def test_an_interface_that_goes_away_meanwhile_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    gone = Interface("gone0", "fe80::1%gone0", 64, None, wireless=False, loopback=False)

    def listed(*, every_address: bool = False) -> list[Interface]:
        return [gone]

    monkeypatch.setattr(kernel, "list_interfaces", listed)
    assert "gone0" not in {one.name for one in kernel.read_interfaces()}
