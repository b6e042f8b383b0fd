"""Frozen dataclasses <-> JSON that a person can open, diff and check in.

`Document` is the base of the two data models, OpGraph and Plan. Reading is strict: an unknown
field, a missing field, a wrong type or a newer version is a `DocumentError` that names the field by
its path (`links[3].source`), never a guess. Writing is canonical: the same document gives the same
bytes, with one list element per line so that `diff` and `git` show what changed.
"""

from __future__ import annotations

import builtins
import dataclasses
import functools
import itertools
import json
import math
import os
import sys
import tempfile
import types
import typing
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, ClassVar, Self, TypeVar

from torch_topoopt.plan.file_kinds import wrong_kind


class DocumentError(ValueError):
    """A document that cannot be read or is not valid; the message names field, value and remedy."""


_MOST_SHOWN = 80  # characters of a value in a message
_MOST_LISTED = 16  # names in a message

_to_json = json.JSONEncoder(allow_nan=False).encode


def brief(value: object) -> str:
    """`repr` of a value for a message; a long one is cut, and its length is appended."""
    if isinstance(value, (list, tuple, dict)) and len(value) > _MOST_SHOWN:
        return f"a {type(value).__name__} of {len(value)} elements"
    try:
        text = repr(value)
    except ValueError:  # Python limits the digits of integers that it converts
        return "an integer of thousands of digits"
    if len(text) <= _MOST_SHOWN:
        return text
    return f"{text[:_MOST_SHOWN]}... ({len(text)} characters)"


def brief_name(name: object) -> str:
    """The name of an unknown field, for a message."""
    text = str(name)
    text = text if text.isprintable() else repr(text)  # no line breaks, no escape codes
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}... ({len(text)} characters)"


def brief_list(names: Collection[str]) -> str:
    """The known names, for a message; of many, only the first."""
    listed = ", ".join(brief_name(name) for name in itertools.islice(names, _MOST_LISTED))
    more = f" and {len(names) - _MOST_LISTED} more" if len(names) > _MOST_LISTED else ""
    return f"{listed}{more}" if listed else "none"


def _type_name(annotation: Any) -> str:
    return getattr(annotation, "__name__", str(annotation))


@functools.cache
def _hints(cls: Any) -> dict[str, Any]:
    """Field -> its type, for classes of modules with postponed annotations (PEP 563).

    Like typing.get_type_hints, but evaluates each text only once.
    """
    module = cls.__module__
    return {field.name: _evaluated(str(field.type), module) for field in dataclasses.fields(cls)}


@functools.cache
def _evaluated(annotation: str, module: str) -> Any:
    names = vars(sys.modules[module])
    for scope in (names, vars(builtins)):  # a look-up takes a tenth of the time of eval()
        if annotation in scope:
            return scope[annotation]
    return eval(annotation, names)


class _InvalidError(Exception):
    """An invalid value; callers add its path while unwinding, so valid values cost nothing."""

    def __init__(self, what: str, *path: str) -> None:
        super().__init__(what)
        self.path = list(path)  # innermost first

    def document_error(self) -> DocumentError:
        path = "".join(reversed(self.path)).removeprefix(".")
        return DocumentError(f"{path}: {self}")


_Decode = Callable[[Any], Any]
Value = TypeVar("Value")


@functools.cache
def _decoder(annotation: Any) -> _Decode:
    """Converts parsed JSON to `annotation`, one of: scalar, dataclass, tuple[T, ...], NamedTuple (a
    list of its fields), T | None, tuple[T, ...] | dataclass (a list or an object)."""
    origin = typing.get_origin(annotation)
    if origin in (types.UnionType, typing.Union):
        options = [a for a in typing.get_args(annotation) if a is not type(None)]
        if len(options) == 2:
            return _list_or_object_decoder(*map(_decoder, options))
        (other,) = options
        decode_other = _decoder(other)
        return lambda value: None if value is None else decode_other(value)
    if origin is typing.Literal:
        return _literal_decoder(typing.get_args(annotation))
    if origin is tuple:
        return _tuple_decoder(typing.get_args(annotation)[0])
    if dataclasses.is_dataclass(annotation):
        return _dataclass_decoder(annotation)
    if issubclass(annotation, tuple):
        return _row_decoder(annotation)
    return _decode_float if annotation is float else _scalar_decoder(annotation)


def prepare_reader(annotation: Any) -> None:
    """Builds the decoders of a document class now, so that the first read does not pay for them."""
    if annotation is ... or annotation is type(None) or isinstance(annotation, str):
        return  # in a tuple[T, ...], T | None or Literal
    _decoder(annotation)
    is_class = dataclasses.is_dataclass(annotation)
    for part in _hints(annotation).values() if is_class else typing.get_args(annotation):
        prepare_reader(part)


def _list_or_object_decoder(decode_list: _Decode, decode_object: _Decode) -> _Decode:
    return lambda value: (decode_object if isinstance(value, dict) else decode_list)(value)


def _literal_decoder(choices: tuple[Any, ...]) -> _Decode:
    def decode(value: Any) -> Any:
        if value not in choices:
            raise _InvalidError(f"{brief(value)} is not one of {', '.join(map(repr, choices))}")
        return value

    return decode


def _tuple_decoder(element_type: Any) -> _Decode:
    def decode(value: Any) -> Any:
        if not isinstance(value, list):
            raise _InvalidError(f"expected a list, got {type(value).__name__}")
        if not value:
            return ()
        decode_element = _decoder(element_type)
        elements: list[Any] = []
        try:
            for element in value:
                elements.append(decode_element(element))  # noqa: PERF401 - its length is needed
        except _InvalidError as error:
            error.path.append(f"[{len(elements)}]")
            raise
        return tuple(elements)

    return decode


def _row_decoder(row: Any) -> _Decode:
    columns = [(name, _decoder(kind)) for name, kind in typing.get_type_hints(row).items()]

    def decode(value: Any) -> Any:
        if not isinstance(value, list) or len(value) != len(columns):
            names = ", ".join(name for name, _ in columns)
            raise _InvalidError(f"expected a list [{names}], got {brief(value)}")
        cells: list[Any] = []
        try:
            for (_, decode_cell), cell in zip(columns, value, strict=True):
                cells.append(decode_cell(cell))
        except _InvalidError as error:
            error.path.append(f".{columns[len(cells)][0]}")
            raise
        return row(*cells)

    return decode


def _dataclass_decoder(cls: Any) -> _Decode:
    fields = {field.name: field for field in dataclasses.fields(cls)}
    decoders: dict[str, _Decode] = {}  # made by the first value of a field: most are rare

    def decoder_of(name: str) -> _Decode:
        decoders[name] = _decoder(_evaluated(str(fields[name].type), cls.__module__))
        return decoders[name]

    def decode(value: Any) -> Any:
        if not isinstance(value, dict):
            raise _InvalidError(f"expected an object, got {type(value).__name__}")
        if not value.keys() <= fields.keys():
            name = next(name for name in value if name not in fields)
            raise _InvalidError(
                f"unknown field (known: {', '.join(fields)})", f".{brief_name(name)}"
            )
        arguments = {}
        name = ""
        try:
            for name, field in fields.items():
                if name in value:
                    decode_field = decoders.get(name) or decoder_of(name)
                    arguments[name] = decode_field(value[name])
                elif field.default is dataclasses.MISSING:
                    raise _InvalidError("missing field")
        except _InvalidError as error:
            error.path.append(f".{name}")
            raise
        return cls(**arguments)

    return decode


def _decode_float(value: Any) -> float:
    if type(value) is int:
        try:
            return float(value)
        except OverflowError:
            raise _InvalidError("an integer too large for a float") from None
    if type(value) is not float:
        raise _InvalidError(f"expected float, got {brief(value)}")
    if not math.isfinite(value):
        raise _InvalidError(f"{value!r} is not a finite number")
    return value


def _scalar_decoder(scalar: Any) -> _Decode:
    def decode(value: Any) -> Any:
        if type(value) is not scalar:
            raise _InvalidError(f"expected {_type_name(scalar)}, got {brief(value)}")
        return value

    return decode


def decode(cls: Any, value: Any) -> Any:
    """Parsed JSON as the dataclass `cls`; raises DocumentError naming the field that is wrong."""
    try:
        return _decoder(cls)(value)
    except _InvalidError as error:
        raise error.document_error() from None


@functools.cache
def _floats(cls: type) -> dict[str, bool]:
    """The fields of a dataclass, and which of them are floats; {} for every other type."""
    if not dataclasses.is_dataclass(cls):
        return {}
    hints = _hints(cls)
    return {field.name: hints[field.name] is float for field in dataclasses.fields(cls)}


@functools.cache
def sections(cls: type) -> frozenset[str]:
    """The fields that hold an object, a list of lists, or None; None is not written."""
    hints = _hints(cls)
    return frozenset(
        name
        for name, annotation in hints.items()
        if any(
            dataclasses.is_dataclass(option) or _is_table(option)
            for option in typing.get_args(annotation)
        )
    )


@functools.cache
def _left_out(cls: Any) -> dict[str, Any]:
    """The fields in a dataclass's LEFT_OUT, which are not written while they have their default."""
    named: frozenset[str] = getattr(cls, "LEFT_OUT", frozenset())
    return {field.name: field.default for field in dataclasses.fields(cls) if field.name in named}


def _is_table(annotation: Any) -> bool:
    """Whether this is a tuple of tuples."""
    inner = typing.get_args(annotation)[:1] if typing.get_origin(annotation) is tuple else ()
    return any(typing.get_origin(element) is tuple for element in inner)


def _plain(value: Any) -> Any:
    if isinstance(value, (tuple, list)):
        return [_plain(item) for item in value]
    cls: Any = type(value)
    fields = _floats(cls)
    if not fields:
        return value
    # 100 and 100.0 are the same link rate, so they must be written alike
    defaults = _left_out(cls)
    return {
        name: float(getattr(value, name)) if is_float else _plain(getattr(value, name))
        for name, is_float in fields.items()
        if (name not in sections(cls) or getattr(value, name) is not None)
        and (name not in defaults or getattr(value, name) != defaults[name])
    }


def as_read(cls: Any, value: Value, where: str) -> Value:
    """`value`, decoded like the field at `where` of a document; raises DocumentError."""
    try:
        decoded: Value = _decoder(cls)(_plain(value))
    except _InvalidError as error:
        error.path.append(where)
        raise error.document_error() from None
    return decoded


def _unique_fields(items: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(items)
    if len(fields) < len(items):
        names = [name for name, _ in items]
        twice = next(name for name in names if names.count(name) > 1)
        raise DocumentError(f"{brief_name(twice)}: given twice in one object")
    return fields


def _has_rows(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and isinstance(value[0], (dict, list))


def _layout(value: Any, indent: int, *, tables: bool = False) -> str:
    """JSON with one element of a list of containers per line and everything deeper on that line.

    With `tables`, objects in lists are laid out in the same way.
    """
    pad = "  " * (indent + 1)
    if isinstance(value, dict) and (indent < 2 or any(map(_has_rows, value.values()))):
        rows = [
            f"{pad}{_to_json(key)}: {_layout(item, indent + 1, tables=tables)}"
            for key, item in value.items()
        ]
        return "{\n" + ",\n".join(rows) + "\n" + "  " * indent + "}" if rows else "{}"
    if _has_rows(value):
        nested = tables and isinstance(value[0], dict)
        rows = [
            pad + (_layout(item, indent + 1, tables=True) if nested else _to_json(item))
            for item in value
        ]
        return "[\n" + ",\n".join(rows) + "\n" + "  " * indent + "]"
    return _to_json(value)


def json_text(value: Any) -> str:
    """JSON of dicts, lists and scalars, laid out as documents are: one list element per line."""
    return _layout(value, 0)


def write_text_atomically(path: str | os.PathLike[str], text: str) -> None:
    """Writes a temporary file and renames it to `path`, so no reader ever sees half a file.

    Writes directly to a device or a named pipe (`--out /dev/null`): root could rename over it.
    """
    target = Path(path)
    if target.exists() and not target.is_file():
        target.write_text(text, encoding="utf-8")
        return
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
    TABLES: ClassVar[bool] = False  # objects in lists have tables: one row per line there, too
    MAY_OMIT_VERSION: ClassVar[bool] = False  # of short documents that people write by hand

    def validate(self) -> Self:
        """Returns self, or raises DocumentError naming the first rule that is broken."""
        raise NotImplementedError  # every document has rules of its own

    @classmethod
    def upgraded(cls, value: dict[str, Any]) -> dict[str, Any]:
        """The fields of a document of an older version, under their current names."""
        return value

    def as_dict(self) -> Any:
        """The fields as JSON has them."""
        return _plain(self)

    def to_json(self) -> str:
        """The canonical text of this document, with a final newline."""
        return _layout(self.as_dict(), 0, tables=self.TABLES) + "\n"

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
        except RecursionError:
            raise DocumentError(f"not a {cls.KIND}: objects or lists nested too deeply") from None
        except ValueError as error:  # a number with too many digits
            raise DocumentError(f"not a {cls.KIND}: {error}") from None
        if not isinstance(value, dict):
            raise DocumentError(f"expected a {cls.KIND} object, got {type(value).__name__}")
        version = value.get("version", cls.VERSION if cls.MAY_OMIT_VERSION else None)
        if type(version) is not int or version < 1:
            raise DocumentError(f"version: expected an integer from 1 on, got {brief(version)}")
        if version > cls.VERSION:
            raise DocumentError(
                f"version: {brief(version)} is newer than {cls.VERSION}, the newest {cls.KIND} "
                "that this torch_topoopt reads; upgrade torch_topoopt"
            )
        document: Self = decode(cls, cls.upgraded(value) if version < cls.VERSION else value)
        return document.validate()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the document to `path` atomically."""
        write_text_atomically(path, self.to_json())

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Reads and validates `path`; raises DocumentError prefixed with the path, or OSError."""
        return cls.read(path)[0]

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> tuple[Self, str]:
        """Like `load`; returns the document and its text."""
        try:
            text = Path(path).read_text(encoding="utf-8")
            return cls.from_json(text), text
        except UnicodeDecodeError:
            problem = wrong_kind(path, cls.KIND) or "not a text file"
            raise DocumentError(f"{path}: {problem}") from None
        except DocumentError as error:
            raise DocumentError(f"{path}: {wrong_kind(path, cls.KIND) or error}") from None
