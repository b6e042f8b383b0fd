"""Dumps are read as data, and refused with the name of what is wrong."""

from __future__ import annotations

import json
import os
import pickle
import sys
from typing import TYPE_CHECKING, Any

import pytest
from support.dumps import collective, dump, link, message, save
from support.refusals import refused

from torch_topoopt.plan import Link
from torch_topoopt.plan.codec import DocumentError
from torch_topoopt.supervision import dumps as dumps_module
from torch_topoopt.supervision.dumps import is_of_script, read_dump, read_dumps, read_plain

if TYPE_CHECKING:
    from pathlib import Path


def test_a_dump_says_what_a_rank_has_called(tmp_path: Path) -> None:
    folder = save(
        tmp_path,
        dump(
            1,
            [collective(4, "_all_gather_base"), message("send", 1, 0, place=3, tag=2)],
            links=[link(1, 0, 10, 20)],
        ),
    )
    (folder / "stacks-1.json").write_text(
        json.dumps(
            {
                "threads": [
                    {
                        "name": "MainThread",
                        "frames": [
                            {"file": "/home/a/train.py", "line": 12, "function": "step"},
                            {"file": os.__file__, "line": 1, "function": "wait"},
                        ],
                    }
                ]
            }
        )
    )
    found = read_dumps(folder)[1]
    assert (found.server, found.host, found.process) == (1, "tester", 1001)
    assert found.members == {"0": (0, 1)}
    assert found.called == {"0": 4}
    gathered, sent = found.calls
    assert str(gathered) == "all_gather_into_tensor (collective 4 of group 0)"
    assert gathered.input_sizes == ((4,),)
    assert sent.message is not None
    assert (sent.message.place, sent.message.tag, sent.unfinished) == (3, 2, True)
    assert [(count.link, count.received_bytes) for count in found.links] == [(Link(1, 0, 0, 0), 20)]
    assert found.where == "train.py:12 in step"


class Evil:
    def __reduce__(self) -> Any:
        return (sys.exit, (3,))


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x80",
        b"hello",
        pickle.dumps(Evil()),
        pickle.dumps([1])[:-3],
        b"\x80\x02crandom\nx\n.",
    ],
)
def test_what_is_no_pickle_of_plain_values_is_refused_and_not_run(
    content: bytes, tmp_path: Path
) -> None:
    (tmp_path / "rank_0").write_bytes(content)
    with refused(DocumentError, "rank_0", "pickle"):
        read_plain(tmp_path / "rank_0")


def changed(field: str, value: Any) -> dict[str, Any]:
    """A dump of which one field is another; "entries.state" is that of the first entry."""
    made = dump(0, [collective(1)], links=[link(0, 1, 1, 1)])
    *above, name = field.split(".")
    place: Any = made
    for key in above:
        place = place[key]
        place = place[0] if isinstance(place, list) else place
    place[name] = value
    return made


@pytest.mark.parametrize(
    ("field", "value", "tokens"),
    [
        ("entries", {}, ("entries", "{}")),
        ("entries", [3], ("entries[0]", 3)),
        ("entries.state", "lost", ("entries[0].state", "lost")),
        ("entries.input_sizes", [["a"]], ("entries[0].input_sizes",)),
        ("entries.process_group", "0", ("process_group", 0)),
        ("entries.topoopt.bytes", 1.5, ("entries[0].topoopt.bytes", 1.5)),
        ("entries.is_p2p", True, ("entries[0].topoopt.sender", "int")),
        ("pg_config", 4, ("pg_config", 4)),
        ("pg_config.0.ranks", "[0, __import__('os')]", ("pg_config.0.ranks",)),
        ("topoopt.rank", "0", ("topoopt.rank", 0)),
        ("topoopt.links.sends", 1, ("topoopt.links[0].sends", 1)),
    ],
)
def test_a_wrong_field_is_named(
    field: str, value: Any, tokens: tuple[object, ...], tmp_path: Path
) -> None:
    path = tmp_path / "rank_0"
    path.write_bytes(pickle.dumps(changed(field, value)))
    with refused(DocumentError, *tokens):
        read_dump(path)


def test_what_others_dump_is_named_as_that(tmp_path: Path) -> None:
    others = dump(0, [])
    del others["topoopt"]
    (tmp_path / "nccl_trace_rank_0").write_bytes(pickle.dumps(others))
    with refused(DocumentError, "topoopt", "missing"):
        read_dumps(tmp_path)


def test_a_folder_without_dumps_and_two_of_a_rank_are_refused(tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text("{}")
    with refused(DocumentError, "flight recorder"):
        read_dumps(tmp_path)
    save(tmp_path, dump(0, []))
    (tmp_path / "other_0").write_bytes((tmp_path / "rank_0").read_bytes())
    with refused(DocumentError, "rank 0", "second"):
        read_dumps(tmp_path)


@pytest.mark.parametrize(
    ("file", "own"),
    [
        ("train.py", True),
        ("/home/someone/libraries/train.py", True),
        ("/opt/venv/lib/python3.12/site-packages/torch/distributed/distributed_c10d.py", False),
        ("/usr/lib/python3/dist-packages/torch/__init__.py", False),
        ("/usr/lib/python3.11/linecache.py", False),
        ("<frozen runpy>", False),
        (dumps_module.__file__, False),
    ],
)
def test_what_is_of_the_script(file: str, own: bool) -> None:
    assert is_of_script(file) == own
