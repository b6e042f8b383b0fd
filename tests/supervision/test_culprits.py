"""Who is to blame, by dumps that say who has called what."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from support.dumps import collective, dump, link, message, save
from support.refusals import named

from torch_topoopt.supervision.culprits import Blame, find_culprits, ranks_text
from torch_topoopt.supervision.dumps import read_dumps

if TYPE_CHECKING:
    from pathlib import Path


def findings(folder: Path, *of_ranks: dict[str, Any]) -> list[Blame]:
    return find_culprits(read_dumps(save(folder / "dumps", *of_ranks)))


DONE = [collective(1), collective(2, "broadcast", root=0)]


def test_who_has_not_called_what_others_wait_for_is_behind(tmp_path: Path) -> None:
    waiting = [*DONE, collective(3, state="started", failed=True)]
    found = findings(
        tmp_path,
        dump(0, waiting, world_size=3),
        dump(1, DONE, world_size=3),
        dump(2, waiting, world_size=3),
    )
    assert [(f.kind, f.ranks) for f in found] == [("behind", (1,))]
    assert named(
        found[0].text, "has not called all_reduce", "collective 3", "group 0", "ranks 0 and 2"
    )


def test_the_first_of_a_chain_is_the_culprit(tmp_path: Path) -> None:
    """Rank 2 waits for rank 1, which waits for rank 0 in another group."""
    third = collective(3, state="started")
    other = collective(1, "barrier", group="1", state="started")
    found = findings(
        tmp_path,
        dump(0, [*DONE, third], world_size=3),
        dump(1, [*DONE, other], world_size=3),
        dump(2, [*DONE, third, other], world_size=3),
    )
    # rank 0 waits for rank 1 and rank 1 for rank 0: nobody is the first
    assert [f.kind for f in found] == ["deadlock"]
    found = findings(
        tmp_path,
        dump(0, DONE, world_size=3),
        dump(1, [*DONE, other], world_size=3),
        dump(2, [*DONE, third, other], world_size=3),
    )
    assert [(f.kind, f.ranks) for f in found] == [("behind", (0,))]


@pytest.mark.parametrize(
    ("odd", "text"),
    [
        (collective(3, "broadcast", root=1), "rank 1 called broadcast from rank 1 of the group 4"),
        (collective(3, types=["Int"]), "rank 1 called all_reduce 4 of Int"),
        (collective(3, sizes=[[2, 3]]), "rank 1 called all_reduce 2x3 of Float"),
    ],
)
def test_who_calls_another_collective_is_named(odd: Any, text: str, tmp_path: Path) -> None:
    usual = [*DONE, collective(3, state="started")]
    found = findings(
        tmp_path,
        dump(0, usual, world_size=3),
        dump(1, [*DONE, {**odd, "state": "started"}], world_size=3),
        dump(2, usual, world_size=3),
    )
    assert (found[0].kind, found[0].ranks) == ("mismatch", (1,))
    assert text in found[0].text
    assert "ranks 0 and 2 called all_reduce 4 of Float" in found[0].text


def test_blocks_that_differ_by_design_are_no_mismatch(tmp_path: Path) -> None:
    assert (
        findings(
            tmp_path,
            dump(0, [collective(1, "all_to_all", sizes=[[7]])]),
            dump(1, [collective(1, "all_to_all", sizes=[[9]])]),
        )
        == []
    )


def test_of_two_that_disagree_neither_is_right(tmp_path: Path) -> None:
    found = findings(
        tmp_path,
        dump(0, [collective(1, "reduce", root=0, state="started")]),
        dump(1, [collective(1, "reduce", root=1, state="started")]),
    )
    assert (found[0].kind, found[0].ranks) == ("mismatch", (0, 1))


def test_a_message_that_nobody_sends(tmp_path: Path) -> None:
    sent = message("send", 0, 1, place=1, state="completed")
    received = message("recv", 0, 1, place=1, state="completed")
    found = findings(tmp_path, dump(0, [sent]), dump(1, [received, message("recv", 0, 1, place=2)]))
    assert [(f.kind, f.ranks) for f in found] == [("message", (0,))]
    assert named(found[0].text, "has not sent", "rank 1", "recv", "group 0")


def test_a_message_with_another_tag_is_another_one(tmp_path: Path) -> None:
    found = findings(
        tmp_path,
        dump(0, [message("send", 0, 1, tag=4)]),
        dump(1, [message("recv", 0, 1, tag=5)]),
    )
    assert [f.kind for f in found] == ["deadlock"]
    assert named(found[0].text, "rank 0", "rank 1", "send", "tag 4")


def test_ranks_that_receive_from_each_other_wait_for_ever(tmp_path: Path) -> None:
    found = findings(tmp_path, dump(0, [message("recv", 1, 0)]), dump(1, [message("recv", 0, 1)]))
    assert [(f.kind, f.ranks) for f in found] == [("deadlock", (0, 1))]


def test_a_receive_from_any_rank_blames_nobody(tmp_path: Path) -> None:
    found = findings(tmp_path, dump(0, [message("recv", -1, 0, place=0)]), dump(1, DONE))
    assert found == []


def test_a_rank_without_a_dump_is_gone(tmp_path: Path) -> None:
    waiting = [*DONE, collective(3, state="started")]
    found = findings(
        tmp_path,
        *(dump(rank, waiting, world_size=3, why="rank 1 is gone") for rank in (0, 2)),
    )
    assert [(f.kind, f.ranks) for f in found] == [("gone", (1,))]
    assert "rank 1 left no dump" in found[0].text
    assert "others report: rank 1 is gone" in found[0].text


def test_the_exception_of_a_script_comes_first(tmp_path: Path) -> None:
    why = "rank 1 failed: ValueError: the loss is not a number"
    found = findings(
        tmp_path, dump(0, [*DONE, collective(3, state="started")], why=why), dump(1, DONE, why=why)
    )
    assert [(f.kind, f.ranks) for f in found] == [("raised", (1,))]
    assert "ValueError: the loss is not a number" in found[0].text


def test_the_failure_of_an_operation_is_no_exception_of_a_script(tmp_path: Path) -> None:
    why = "rank 0 failed: all_reduce (operation 2 of group 0): Timed out after 2000 ms"
    found = findings(
        tmp_path, dump(0, [*DONE, collective(3, state="started")], why=why), dump(1, DONE, why=why)
    )
    assert [f.kind for f in found] == ["behind"]


def test_a_link_that_does_not_deliver_is_named(tmp_path: Path) -> None:
    waiting = [collective(1, state="started")]
    found = findings(
        tmp_path,
        dump(0, waiting, links=[link(0, 1, 5000, 3000)]),
        dump(1, waiting, links=[link(1, 0, 3000, 1000)]),
    )
    assert [(f.kind, f.ranks) for f in found] == [("link", ())]
    assert "server 0 port 0 -> server 1 port 0 has not delivered 4 kB of 5 kB" in found[0].text


def test_a_lost_link_is_named(tmp_path: Path) -> None:
    found = findings(tmp_path, dump(0, DONE, links=[link(0, 1, 5, 5, up=False)]), dump(1, DONE))
    assert [f.text for f in found] == ["the link server 0 port 0 -> server 1 port 0 is lost"]


def test_a_call_of_all_ranks_may_be_under_way(tmp_path: Path) -> None:
    waiting = [collective(1, state="started")]
    found = findings(tmp_path, dump(0, waiting), dump(1, waiting))
    assert [(f.kind, f.ranks) for f in found] == [("unfinished", ())]


def test_calls_of_a_running_job_have_a_second(tmp_path: Path) -> None:
    young = [collective(1, state="started", age_s=0.2)]
    old = [collective(1, state="started", age_s=2)]
    for entries, kinds in ((young, []), (old, ["behind"])):
        asked = [dump(0, entries, why="asked for"), dump(1, [], why="asked for")]
        assert [f.kind for f in findings(tmp_path, *asked)] == kinds


def test_a_job_that_is_well_has_no_culprit(tmp_path: Path) -> None:
    assert findings(tmp_path, dump(0, DONE), dump(1, DONE)) == []


def test_many_ranks_are_not_all_listed() -> None:
    assert ranks_text([2]) == "rank 2"
    assert ranks_text([2, 0, 1]) == "ranks 0, 1 and 2"
    assert ranks_text(range(12)) == "ranks 0, 1, 2, 3, 4, 5, 6, 7 and 4 more"
