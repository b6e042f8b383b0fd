"""The facts about its host that a rank announces."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch_topoopt.discovery import host
from torch_topoopt.discovery.interfaces import INTERFACES_VARIABLE, list_interfaces

if TYPE_CHECKING:
    import pytest


def test_a_rank_lists_interfaces_only_if_the_user_names_some(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Otherwise only the leader of a machine does, and only if there are several."""
    listed = []

    def listing() -> list[host.Interface]:
        listed.append(list_interfaces())
        return listed[-1]

    monkeypatch.setattr(host, "list_interfaces", listing)
    monkeypatch.delenv(INTERFACES_VARIABLE, raising=False)
    assert host.Announcement.here(0).selected == ()
    assert not listed
    monkeypatch.setenv(INTERFACES_VARIABLE, "lo,nic7")
    announced = host.Announcement.here(0)
    assert (announced.selected, announced.unmatched, announced.error) == (("lo",), ("nic7",), "")
    assert len(listed) == 1


def test_only_a_job_on_one_machine_uses_the_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(INTERFACES_VARIABLE, "lo")
    assert [i.name for i in host.usable_interfaces("here", one_machine=True)] == ["lo"]
    assert host.usable_interfaces("here", one_machine=False) == []
