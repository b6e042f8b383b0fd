"""The JSON of results: dataclasses and NamedTuples become objects of their fields, in order.

`codec` writes documents. Other classes may define:

- `OMIT_IF_NONE`: the keys to omit if their value is None.
- `JSON_FIELDS`: the values of the object (attributes, properties or methods without arguments), as
  "name", "path.to.name" or "key=path.to.name"; the default key is the last name of the path. "*"
  means all fields; a final "?" writes infinity as null. A tuple (key, values...) is a nested
  object. `JSON_FIELDS = str` writes the object as text.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from torch_topoopt.plan.codec import Document


class Entry(NamedTuple):
    """A value of an object: its key, and the path of attributes to it or its nested values."""

    key: str
    path: tuple[str, ...]
    may_be_infinite: bool = False
    inner: tuple[Entry, ...] = ()


def within(attribute: str, *names: str) -> tuple[str, ...]:
    """JSON_FIELDS entries for the object in an attribute."""
    parts = (name.rpartition("=") for name in names)
    return tuple(f"{key}{equals}{attribute}.{path}" for key, equals, path in parts)


@functools.cache
def entries(cls: Any) -> tuple[Entry, ...]:
    """The entries of a class's JSON object; none if it is not written as an object."""
    if dataclasses.is_dataclass(cls):
        names = [field.name for field in dataclasses.fields(cls)]
    else:
        names = list(getattr(cls, "_fields", ()))  # of a NamedTuple
    return _parsed(getattr(cls, "JSON_FIELDS", ("*",)), names)


def _parsed(listed: Iterable[Any], fields: Iterable[str]) -> tuple[Entry, ...]:
    found: list[Entry] = []
    for item in listed:
        if isinstance(item, tuple):
            found.append(Entry(item[0], (), inner=_parsed(item[1:], fields)))
        elif item == "*":
            found += [Entry(name, (name,)) for name in fields]
        else:
            key, _, path = item.removesuffix("?").rpartition("=")
            names = tuple(path.split("."))
            found.append(Entry(key or names[-1], names, item.endswith("?")))
    return tuple(found)


def is_text(cls: Any) -> bool:
    return getattr(cls, "JSON_FIELDS", None) is str


def plain(value: Any) -> Any:
    """Dicts, lists and scalars for json.dumps."""
    if isinstance(value, Document):
        return value.as_dict()
    if isinstance(value, (str, Path)) or is_text(type(value)):
        return str(value)
    cls: Any = type(value)
    if found := entries(cls):
        return _object(value, found, getattr(value, "OMIT_IF_NONE", ()))
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    return [plain(item) for item in value] if isinstance(value, Iterable) else value


def _object(value: Any, found: Iterable[Entry], optional: Iterable[str]) -> dict[str, Any]:
    pairs = (
        (entry.key, _object(value, entry.inner, ()) if entry.inner else plain(_at(value, entry)))
        for entry in found
    )
    return {key: item for key, item in pairs if item is not None or key not in optional}


def _at(value: Any, entry: Entry) -> Any:
    for name in entry.path:
        value = getattr(value, name)
        if callable(value):
            value = value()
        if value is None:
            return None
    return None if entry.may_be_infinite and not math.isfinite(value) else value
