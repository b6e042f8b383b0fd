"""The file of jobs that `topoopt allocate` reads (docs/planning/allocation.md)."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

from torch_topoopt.plan.json_list import read_list
from torch_topoopt.shared_networks.allocation.board_job import BoardJob
from torch_topoopt.shared_networks.allocation.boards import MOST_BOARDS, SubMesh

_FORMS = 'an object with "name" and one of "shape" and "boards"'
_FIELDS = {"name", "shape", "boards", "rows", "columns", "virtual"}  # the last follows from others


@dataclass(frozen=True)
class JobFile:
    """The jobs that request boards, in order, and those that have some already."""

    asking: tuple[BoardJob, ...]
    running: dict[BoardJob, SubMesh]

    @classmethod
    def read(cls, path: str) -> JobFile:
        """Reads a list of jobs. Raises ValueError in one line for the first error."""
        rows = read_list("jobs", path)
        asking: list[BoardJob] = []
        running: dict[BoardJob, SubMesh] = {}
        names: set[str] = set()
        for i, row in enumerate(rows):
            job, own = _entry(f"jobs[{i}]", row)
            if job.name in names:
                raise ValueError(f"jobs[{i}].name: {job.name!r} is listed twice")
            names.add(job.name)
            if own is None:
                asking.append(job)
            else:
                running[job] = own
        return cls(tuple(asking), running)


def _entry(where: str, row: object) -> tuple[BoardJob, SubMesh | None]:
    if not isinstance(row, dict):
        raise ValueError(f"{where}: {_brief(row)} is not {_FORMS}")
    unknown = sorted(set(row) - _FIELDS)
    if unknown:
        raise ValueError(f"{where}: there is no field {unknown[0][:40]!r}; there are {_known()}")
    name = row.get("name")
    if not isinstance(name, str) or not 1 <= len(name) <= 64 or not name.isprintable():
        raise ValueError(f"{where}.name: {_brief(name)} is not a text of 1 to 64 characters")
    if ("shape" in row) == ("boards" in row):
        raise ValueError(f"{where}: job {name} is not {_FORMS}")
    if "boards" in row:
        job = BoardJob.square(name, _boards(f"{where}.boards", row["boards"]))
    else:
        job = BoardJob(name, *_shape(f"{where}.shape", row["shape"]))
    if ("rows" in row) != ("columns" in row):
        missing = "columns" if "rows" in row else "rows"
        raise ValueError(f"{where}.{missing}: missing; a job that runs has both")
    if "rows" not in row:
        return job, None
    own = _places(where, row)
    if own.size != job.size:
        raise ValueError(f"{where}: job {name} has {own.size} boards, and asks for {job.size}")
    return BoardJob(name, *own.shape), own


def _boards(where: str, value: object) -> int:
    if not _is_count(value) or not isinstance(value, int) or not 1 <= value <= MOST_BOARDS:
        raise ValueError(f"{where}: {_brief(value)} is not a number of boards, 1 to {MOST_BOARDS}")
    return value


def _shape(where: str, value: object) -> tuple[int, int]:
    match = (
        re.fullmatch(r"(\d{1,7})x(\d{1,7})", value, re.ASCII) if isinstance(value, str) else None
    )
    if match is None or not 1 <= int(match[1]) * int(match[2]) <= MOST_BOARDS:
        raise ValueError(f'{where}: {_brief(value)} is not ROWSxCOLUMNS of boards, as "2x4"')
    return int(match[1]), int(match[2])


def _places(where: str, row: dict[str, Any]) -> SubMesh:
    places: list[tuple[int, ...]] = []
    for name in ("rows", "columns"):
        value = row[name]
        if not isinstance(value, list) or not all(_is_count(v) for v in value):
            raise ValueError(f"{where}.{name}: {_brief(value)} is not a list of numbers from 0 on")
        places.append(tuple(value))
    try:
        return SubMesh(places[0], places[1])
    except ValueError as error:
        raise ValueError(f"{where}.{error}") from None


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 10**9


def _known() -> str:
    return ", ".join(sorted(_FIELDS))


def _brief(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)[:60]
