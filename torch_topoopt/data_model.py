"""Frozen dataclasses <-> JSON that a person can open, diff and check in.

`Document` is the base of the two data models, OpGraph and Plan. Reading is strict: an unknown
field, a missing field, a wrong type or a newer version is a `DocumentError` that names the field by
its path (`links[3].source`), never a guess. Writing is canonical: the same document gives the same
bytes, with one list element per line so that `diff` and `git` show what changed.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import os
import tempfile
import types
import typing
from pathlib import Path
from typing import Any, ClassVar, Self


class DocumentError(ValueError):
    """A document that cannot be read or is not valid; the message names field, value and remedy."""


def _type_name(annotation: Any) -> str:
    return getattr(annotation, "__name__", str(annotation))


@functools.cache
def _hints(cls: Any) -> dict[str, Any]:
    return typing.get_type_hints(cls)


def _decode(annotation: Any, value: Any, path: str) -> Any:
    """Converts parsed JSON to `annotation`, one of: scalar, dataclass, tuple[T, ...], T | None."""
    origin = typing.get_origin(annotation)
    if origin in (types.UnionType, typing.Union):
        if value is None:
            return None
        (annotation,) = [a for a in typing.get_args(annotation) if a is not type(None)]
        return _decode(annotation, value, path)
    if origin is typing.Literal:
        choices = typing.get_args(annotation)
        if value not in choices:
            raise DocumentError(f"{path}: {value!r} is not one of {', '.join(map(repr, choices))}")
        return value
    if origin is tuple:
        if not isinstance(value, list):
            raise DocumentError(f"{path}: expected a list, got {type(value).__name__}")
        element = typing.get_args(annotation)[0]
        return tuple(_decode(element, item, f"{path}[{i}]") for i, item in enumerate(value))
    if dataclasses.is_dataclass(annotation):
        return _decode_dataclass(annotation, value, path)
    if annotation is float and isinstance(value, int) and not isinstance(value, bool):
        try:
            return float(value)
        except OverflowError:
            raise DocumentError(f"{path}: an integer too large for a float") from None
    if type(value) is not annotation:
        raise DocumentError(f"{path}: expected {_type_name(annotation)}, got {value!r}")
    if annotation is float and not math.isfinite(value):
        raise DocumentError(f"{path}: {value!r} is not a finite number")
    return value


def _decode_dataclass(cls: Any, value: Any, path: str) -> Any:
    if not isinstance(value, dict):
        raise DocumentError(f"{path}: expected an object, got {type(value).__name__}")
    hints = _hints(cls)
    fields = {f.name: f for f in dataclasses.fields(cls)}
    prefix = f"{path}." if path else ""
    for name in value:
        if name not in fields:
            raise DocumentError(f"{prefix}{name}: unknown field (known: {', '.join(fields)})")
    arguments = {}
    for name, field in fields.items():
        if name in value:
            arguments[name] = _decode(hints[name], value[name], f"{prefix}{name}")
        elif field.default is dataclasses.MISSING:
            raise DocumentError(f"{prefix}{name}: missing field")
    return cls(**arguments)


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        cls: Any = type(value)
        hints = _hints(cls)
        plain = {f.name: _plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
        # 100 and 100.0 are the same link rate, so they must be the same bytes
        return {k: float(v) if hints[k] is float else v for k, v in plain.items()}
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return value


def _unique_fields(items: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(items)
    if len(fields) < len(items):
        names = [name for name, _ in items]
        twice = next(name for name in names if names.count(name) > 1)
        raise DocumentError(f"{twice}: given twice in one object")
    return fields


def _layout(value: Any, indent: int) -> str:
    """JSON with one element of a list of containers per line and everything deeper on that line."""
    pad = "  " * (indent + 1)
    if isinstance(value, dict) and indent < 2:
        rows = [f"{pad}{json.dumps(k)}: {_layout(v, indent + 1)}" for k, v in value.items()]
        return "{\n" + ",\n".join(rows) + "\n" + "  " * indent + "}" if rows else "{}"
    if isinstance(value, list) and value and isinstance(value[0], (dict, list)):
        rows = [f"{pad}{json.dumps(item, allow_nan=False)}" for item in value]
        return "[\n" + ",\n".join(rows) + "\n" + "  " * indent + "]"
    return json.dumps(value, allow_nan=False)


def write_text_atomically(path: str | os.PathLike[str], text: str) -> None:
    """Writes beside `path` and renames, so that no reader ever sees half a file."""
    target = Path(path)
    handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(temporary, 0o644)
        os.replace(temporary, target)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


class Document:
    """Base of a versioned document: a frozen dataclass whose first field is `version`."""

    KIND: ClassVar[str]
    VERSION: ClassVar[int]

    def validate(self) -> Self:
        """Returns self, or raises DocumentError naming the first rule that is broken."""
        raise NotImplementedError  # every document has rules of its own

    def to_json(self) -> str:
        """The canonical text of this document, with a final newline."""
        return _layout(_plain(self), 0) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Parses and validates; raises DocumentError."""
        try:
            value = json.loads(text, object_pairs_hook=_unique_fields)
        except json.JSONDecodeError as error:
            raise DocumentError(
                f"not valid JSON: {error.msg} at line {error.lineno} column {error.colno}"
            ) from None
        except DocumentError:
            raise
        except (RecursionError, ValueError) as error:  # nested too deep, or a number too long
            raise DocumentError(f"not a {cls.KIND}: {error}") from None
        if not isinstance(value, dict):
            raise DocumentError(f"expected a {cls.KIND} object, got {type(value).__name__}")
        version = value.get("version")
        if type(version) is not int or version < 1:
            raise DocumentError(f"version: expected an integer from 1 on, got {version!r}")
        if version > cls.VERSION:
            raise DocumentError(
                f"version: {version} is newer than {cls.VERSION}, the newest {cls.KIND} this "
                "torch_topoopt reads; upgrade torch_topoopt"
            )
        document: Self = _decode_dataclass(cls, value, "")
        return document.validate()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the document to `path`, whole or not at all."""
        write_text_atomically(path, self.to_json())

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Reads and validates `path`; raises DocumentError prefixed with the path, or OSError."""
        try:
            return cls.from_json(Path(path).read_text(encoding="utf-8"))
        except UnicodeDecodeError:
            raise DocumentError(f"{path}: not a text file") from None
        except DocumentError as error:
            raise DocumentError(f"{path}: {error}") from None
