"""The table of links after a run: the busiest ones, however many there are."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch_topoopt.launcher import console
from torch_topoopt.launcher.run import link_bytes
from torch_topoopt.launcher.run.link_bytes import MOST_SHOWN
from torch_topoopt.plan import LinkTraffic

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest

    from torch_topoopt.plan import Plan


def _measured(plan: Plan) -> list[LinkTraffic]:
    """The link of server i carried i MB."""
    return [
        LinkTraffic(
            k.source, k.source_port, k.target, k.target_port, k.source * 10**6, 0, 0, 0, 1.0
        )
        for k in plan.network.links
    ]


def test_of_many_links_the_busiest_are_shown(
    ring_plan: Callable[..., Plan], capsys: pytest.CaptureFixture[str]
) -> None:
    plan = ring_plan(MOST_SHOWN)
    links = _measured(plan)
    assert len(links) == 2 * MOST_SHOWN
    link_bytes.show(console.Terminal(), plan, links, None)
    out = capsys.readouterr().out
    shown = [line.split()[1] for line in out.splitlines() if line.strip().startswith("server ")]
    half = range(MOST_SHOWN // 2, MOST_SHOWN)
    assert sorted(map(int, shown)) == sorted([*half, *half])
    more = f"these are the {MOST_SHOWN} busiest links; {MOST_SHOWN} more are in metrics.jsonl"
    assert more in out


def test_of_few_links_all_are_shown(
    ring_plan: Callable[..., Plan], capsys: pytest.CaptureFixture[str]
) -> None:
    plan = ring_plan(4)
    link_bytes.show(console.Terminal(), plan, _measured(plan), None)
    out = capsys.readouterr().out
    assert out.count("-> server") == 8
    assert "busiest" not in out
