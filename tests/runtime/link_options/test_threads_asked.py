"""How many threads that reduce the environment asks for; of links: test_asked_of_tcp_links.py."""

from __future__ import annotations

import pytest
from support.refusals import refused

from torch_topoopt.links.errors import FabricError
from torch_topoopt.runtime.link_options.threads_asked import reduce_threads_asked


def test_none_is_asked_for_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TOPOOPT_REDUCE_THREADS", raising=False)
    assert reduce_threads_asked() == 0


@pytest.mark.parametrize(("text", "number"), [("0", 0), ("3", 3), ("64", 64)])
def test_the_variable_says_how_many(
    text: str, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOPOOPT_REDUCE_THREADS", text)
    assert reduce_threads_asked() == number


@pytest.mark.parametrize("text", ["65", "-1", "2.5", "two", ""])
def test_another_number_is_one_clear_line(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOPOOPT_REDUCE_THREADS", text)
    with refused(FabricError, "TOPOOPT_REDUCE_THREADS", f"'{text}'", "0..64"):
        reduce_threads_asked()
