"""The process groups that the script requested: one file per rank, merged into one record."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self

from torch_topoopt.plan.codec import Document, DocumentError
from torch_topoopt.runtime import requested_backends

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path


@dataclass(frozen=True)
class RankGroups(Document):
    """The file of one rank; see torch_topoopt.runtime.requested_backends."""

    KIND: ClassVar[str] = "RankGroups"
    VERSION: ClassVar[int] = 1

    version: int
    rank: int
    requested: tuple[str, ...]
    taken_over: tuple[str, ...]
    opened: bool

    def validate(self) -> Self:
        if unknown := set(self.taken_over) - set(self.requested):
            raise DocumentError(f"taken_over: {min(unknown)!r} was not requested")
        return self


@dataclass(frozen=True)
class RequestedGroups:
    """Of all ranks: backends that the script named, those that topoopt replaced, and whether any
    rank opened a topoopt group."""

    requested: tuple[str, ...] = ()
    taken_over: tuple[str, ...] = ()
    opened: bool = False
    JSON_FIELDS: ClassVar = ("asked=requested", "taken_over", "opened_topoopt=opened")

    @property
    def others(self) -> tuple[str, ...]:
        """Backends whose traffic is outside the planned links."""
        return tuple(
            name for name in self.requested if "topoopt" not in name and name not in self.taken_over
        )

    @classmethod
    def together(cls, records: Iterable[RequestedGroups | RankGroups]) -> RequestedGroups:
        """The union over several ranks, or hosts."""
        listed = list(records)
        return cls(
            tuple(sorted({name for record in listed for name in record.requested})),
            tuple(sorted({name for record in listed for name in record.taken_over})),
            any(record.opened for record in listed),
        )

    @classmethod
    def of(cls, fields: dict[str, Any]) -> RequestedGroups:
        """The record with these JSON fields."""
        return cls(tuple(fields["asked"]), tuple(fields["taken_over"]), fields["opened_topoopt"])


def gather(run_dir: Path) -> RequestedGroups:
    """Reads and removes the ranks' files; raises DocumentError for an invalid one."""
    files = [RankGroups.load(path) for path in run_dir.glob(requested_backends.FILE_PATTERN)]
    remove(run_dir)
    return RequestedGroups.together(files)


def remove(run_dir: Path) -> None:
    """Removes the ranks' files, including incomplete ones of a killed rank."""
    for pattern in (requested_backends.FILE_PATTERN, f".{requested_backends.FILE_PATTERN}*"):
        for path in run_dir.glob(pattern):
            path.unlink(missing_ok=True)


def unused_links(groups: RequestedGroups, *, measured: bool) -> str:
    """Why the planned links carried nothing, in a sentence; empty if they were used."""
    if measured:
        return ""
    if groups.opened:
        return (
            "topoopt groups were opened, but no rank left its byte counters: they are written when "
            "the interpreter exits normally"
        )
    said = "no rank opened a topoopt group: the planned links carried nothing; the script "
    if not groups.others:
        return said + "opened no process group"
    names = ", ".join(groups.others)
    said += f"requested {names}"
    parts = {part.rpartition(":")[2] for name in groups.others for part in name.split(",")}
    replaceable = [name for name in requested_backends.replaceable_backends() if name in parts]
    if replaceable:
        said += f" (--take-over {','.join(replaceable)} puts topoopt in its place)"
    return said


def beside(groups: RequestedGroups, compared: Sequence[str] = ()) -> str:
    """Describes traffic outside the planned links if these were used, too; "" without any, and for
    backends that are `compared` on purpose."""
    others = [name for name in groups.others if name not in compared]
    if not groups.opened or not others:
        return ""
    return (
        f"the script also opened groups of {', '.join(others)}: their traffic did not go "
        "over the planned links"
    )
