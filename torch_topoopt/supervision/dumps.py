"""Dumps of the ranks' flight recorders, as the C++ backend writes them, read and checked.

A dump is a pickle of plain values; the reader refuses anything else and runs no code from it.
"""

from __future__ import annotations

import ast
import io
import json
import pickle
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, TypeVar

from torch_topoopt.plan import Link
from torch_topoopt.plan.codec import DocumentError

if TYPE_CHECKING:
    from collections.abc import Iterator

_T = TypeVar("_T")

_NUMBERED = re.compile(r"(\D*)(\d+)")
# the rank may run another Python, or on another host
_LIBRARY = re.compile(r"<frozen |.*/(site|dist)-packages/|.*/lib(64)?/python3\.\d+/")
_OWN_FOLDER = str(Path(__file__).parent.parent) + "/"


@dataclass(frozen=True)
class Message:
    """The ends of a message as ranks of its group; -1: any rank.

    `place` counts messages of the same sender, receiver and tag from 1; 0: not known.
    """

    sender: int
    receiver: int
    tag: int
    place: int


@dataclass(frozen=True)
class RecordedCall:
    """One call of an operation on one rank. `number` counts the collectives of its group from 1; a
    message has the number of the last collective before it."""

    JSON_FIELDS: ClassVar = ("call=__str__", "state=outcome")

    record: int
    group: str
    name: str
    number: int
    state: str  # "scheduled", "started" or "completed"
    failed: bool
    input_sizes: tuple[tuple[int, ...], ...]
    output_sizes: tuple[tuple[int, ...], ...]
    types: tuple[str, ...]
    root: int
    bytes: int
    called_ns: int
    message: Message | None = None
    started_ns: int | None = None
    completed_ns: int | None = None

    @property
    def unfinished(self) -> bool:
        return self.state != "completed"

    @property
    def outcome(self) -> str:
        return "failed" if self.failed else self.state

    def __str__(self) -> str:
        if self.message is not None:
            tag = f" with tag {self.message.tag}" if self.message.tag else ""
            return f"{self.name}{tag} in group {self.group}"
        return f"{self.name} (collective {self.number} of group {self.group})"


@dataclass(frozen=True)
class LinkCount:
    """A rank's traffic on a link until the dump, sent or only received."""

    link: Link
    sends: bool
    up: bool
    sent_bytes: int
    received_bytes: int


@dataclass(frozen=True)
class Dump:
    """The flight recorder of one rank; the oldest call comes first."""

    JSON_FIELDS: ClassVar = (
        "rank", "server", "host", "process", "time_ns", "why", "where", "called", "unfinished",
    )  # fmt: skip

    rank: int
    world_size: int
    server: int
    host: str
    process: int
    time_ns: int  # since the epoch
    why: str
    calls: tuple[RecordedCall, ...]
    members: dict[str, tuple[int, ...]]  # group -> its global ranks
    called: dict[str, int]  # group -> number of its last collective here
    links: tuple[LinkCount, ...]
    where: str = ""  # line of the script that Python's main thread ran at the dump

    @property
    def unfinished(self) -> list[RecordedCall]:
        return [call for call in self.calls if call.unfinished]


def read_dumps(folder: Path) -> dict[int, Dump]:
    """Rank -> its dump, for all dumps in a folder. Raises DocumentError."""
    try:
        paths = sorted(folder.iterdir())
    except OSError as error:
        raise DocumentError(f"{folder}: {error.strerror}") from None
    dumps: dict[int, Dump] = {}
    for path in paths:
        if not _NUMBERED.fullmatch(path.name) or not path.is_file():
            continue
        dump = read_dump(path)
        if dump.rank in dumps:
            raise DocumentError(
                f"{path}: is a second dump of rank {dump.rank}; give a folder with one of each"
            )
        dumps[dump.rank] = dump
    if not dumps:
        raise DocumentError(f"{folder}: has no dumps of a flight recorder (rank_0, rank_1, ...)")
    return dumps


class _PlainUnpickler(pickle.Unpickler):
    """Unpickles plain values only."""

    def find_class(self, module: str, name: str) -> NoReturn:
        raise pickle.UnpicklingError(f"{module}.{name} is no plain value")


def read_plain(path: Path) -> Any:
    """The plain values of a pickle. Raises DocumentError."""
    try:
        return _plain(path.read_bytes(), path)
    except OSError as error:
        raise DocumentError(f"{path}: {error.strerror}") from None


def _plain(data: bytes, path: Path) -> Any:
    try:
        return _PlainUnpickler(io.BytesIO(data)).load()
    except Exception as error:  # unpickling other data may raise anything
        raise DocumentError(f"{path}: is no pickle of plain values: {error}") from None


def read_dump(path: Path) -> Dump:
    """Reads one dump. Raises DocumentError if it is no dump of this backend."""
    return _dump(PlainFields(path, "", read_plain(path)))


def dump_of(data: bytes) -> Dump:
    """A dump from its bytes. Raises DocumentError."""
    path = Path("the flight recorder")
    return _dump(PlainFields(path, "", _plain(data, path)))


def _dump(fields: PlainFields) -> Dump:
    path = fields.path
    if "topoopt" not in fields.values:
        raise DocumentError(
            f"{path}: topoopt: missing; this is not our dump (torchfrtrace reads those of others)"
        )
    own = fields.below("topoopt")
    return Dump(
        rank=own.take("rank", int),
        world_size=own.take("world_size", int),
        server=own.take("server", int),
        host=own.take("host", str),
        process=own.take("pid", int),
        time_ns=own.take("time_ns", int),
        why=own.take("why", str),
        calls=tuple(_call(entry) for entry in fields.each("entries")),
        members=_members(fields),
        called=_called(fields),
        links=tuple(_count(entry) for entry in own.each("links")),
        where=_where(path.with_name(f"stacks-{own.take('rank', int)}.json")),
    )


class PlainFields:
    """The fields of a dict in a document; errors name file and field."""

    def __init__(self, path: Path, where: str, values: Any) -> None:
        self.path, self.where = path, where
        if not isinstance(values, dict):
            raise DocumentError(f"{path}: {where or 'the document'}: {_short(values)} is no dict")
        self.values = values

    def take(self, name: str, kind: type[_T]) -> _T:
        value = self.values.get(name)
        right = type(value) in (int, float) if kind is float else type(value) is kind
        if not right:
            raise self.error(name, f"{_short(value)} is no {kind.__name__}")
        return value  # type: ignore[return-value]

    def below(self, name: str) -> PlainFields:
        return PlainFields(self.path, f"{self.where}{name}.", self.values.get(name))

    def each(self, name: str) -> Iterator[PlainFields]:
        """The dicts of a list."""
        for i, values in enumerate(self.take(name, list)):
            yield PlainFields(self.path, f"{self.where}{name}[{i}].", values)

    def link(self) -> Link:
        ends = ("source", "source_port", "target", "target_port")
        return Link(*(self.take(name, int) for name in ends))

    def error(self, name: str, what: str) -> DocumentError:
        return DocumentError(f"{self.path}: {self.where}{name}: {what}")


def _short(value: Any) -> str:
    return "nothing" if value is None else repr(value)[:60]


def _call(entry: PlainFields) -> RecordedCall:
    own = entry.below("topoopt")
    name, _, _ = entry.take("profiling_name", str).rpartition(":")[2].partition(" ")
    group = entry.values.get("process_group")
    if not (isinstance(group, tuple) and len(group) == 2 and isinstance(group[0], str)):
        raise entry.error("process_group", f"{_short(group)} is no pair of texts")
    state = entry.take("state", str)
    if state not in ("scheduled", "started", "completed"):
        raise entry.error("state", f"{state!r} is not scheduled, started or completed")
    message = None
    if entry.take("is_p2p", bool):
        message = Message(*(own.take(n, int) for n in ("sender", "receiver", "tag", "in_flow")))
    return RecordedCall(
        record=entry.take("record_id", int),
        group=group[0],
        name=_NAMES.get(name, name),
        number=entry.take("collective_seq_id", int),
        state=state,
        failed=own.take("failed", bool),
        input_sizes=_sizes(entry, "input_sizes"),
        output_sizes=_sizes(entry, "output_sizes"),
        types=tuple(
            map(str, (*entry.take("input_dtypes", list), *entry.take("output_dtypes", list)))
        ),
        root=own.take("root", int),
        bytes=own.take("bytes", int),
        called_ns=entry.take("time_created_ns", int),
        message=message,
        started_ns=_time(entry, "time_discovered_started_ns"),
        completed_ns=_time(entry, "time_discovered_completed_ns"),
    )


def _time(entry: PlainFields, name: str) -> int | None:
    return None if entry.values.get(name) is None else entry.take(name, int)


# name in PyTorch's recorder -> name that users know
_NAMES = {
    "all_reduce_barrier": "barrier",
    "_all_gather_base": "all_gather_into_tensor",
    "_reduce_scatter_base": "reduce_scatter_tensor",
    "allreduce_coalesced": "all_reduce_coalesced",
    "ALLGATHER_coalesced": "all_gather_coalesced",
}


def _sizes(entry: PlainFields, name: str) -> tuple[tuple[int, ...], ...]:
    sizes = entry.take(name, list)
    if not all(isinstance(of, list) and all(type(n) is int for n in of) for of in sizes):
        raise entry.error(name, f"{_short(sizes)} is no list of lists of numbers")
    return tuple(tuple(of) for of in sizes)


def _members(fields: PlainFields) -> dict[str, tuple[int, ...]]:
    members = {}
    groups = fields.below("pg_config")
    for name in groups.values:
        group = groups.below(name)
        text = group.take("ranks", str)
        if not re.fullmatch(r"\[(\d{1,9}(, \d{1,9})*)?\]", text):
            raise group.error("ranks", f"{text[:60]!r} is no list of ranks")
        members[name] = tuple(ast.literal_eval(text))
    return members


def _called(fields: PlainFields) -> dict[str, int]:
    """From the counters of the groups, which outlive the recorder's ring buffer."""
    named = {entry.take("pg_id", int): _call(entry).group for entry in fields.each("entries")}
    status = fields.below("pg_status")
    return {
        group: status.below(str(number)).take("last_enqueued_collective", int)
        for number, group in named.items()
        if str(number) in status.values
    }


def _count(entry: PlainFields) -> LinkCount:
    return LinkCount(
        entry.link(),
        entry.take("sends", bool),
        entry.take("up", bool),
        entry.take("sent_bytes", int),
        entry.take("received_bytes", int),
    )


def is_of_script(file: str) -> bool:
    """Whether a source file belongs to the user's script: not to this package, nor to a library."""
    return not (file.startswith(_OWN_FOLDER) or _LIBRARY.match(file))


def _where(path: Path) -> str:
    """The innermost line of the script in the main thread; if the script is an installed package,
    the innermost line outside this package. "" if not known."""
    try:
        threads = json.loads(path.read_text(encoding="utf-8"))["threads"]
        frames = next(t["frames"] for t in threads if t["name"] == "MainThread")
        own = [f for f in frames if is_of_script(str(f["file"]))]
        frame = (own or [f for f in frames if not str(f["file"]).startswith(_OWN_FOLDER)])[-1]
        return f"{Path(frame['file']).name}:{frame['line']} in {frame['function']}"
    except (OSError, ValueError, LookupError, TypeError, StopIteration):
        return ""
