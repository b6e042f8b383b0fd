"""YAML text -> plain values, and from there to fields, with no guess on the way.

PyYAML reads YAML 1.1, in which `no` is False, `12:30` is 750, and of a key given twice the last one
wins. Here plain words are text unless they are a decimal number, true, false or null (as in YAML
1.2), a key given twice is an error, and every error names its field by the path from the top, such
as `servers[2].ports[0].address`.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, TypeVar

from torch_topoopt.plan.codec import DocumentError, brief, brief_name

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_Value = TypeVar("_Value")

_MOST_NESTED = 64
_INTEGER = re.compile(r"[-+]?(?:0|[1-9][0-9]*)")
_FLOAT = re.compile(r"[-+]?(?:0|[1-9][0-9]*)\.[0-9]+")
_BOOL = re.compile(r"true|false")
_NULL = re.compile(r"null|~|")
# words that every YAML reader reads as text, so they need no quotes
_PLAIN = re.compile(
    r"(?!(?:y|n|yes|no|on|off|true|false|null)$)[A-Za-z][A-Za-z0-9._/-]*"
    r"|\d{1,3}(?:\.\d{1,3}){3}(?:/\d{1,2})?"
    r"|\d+(?:\.\d+)?[kMGT]bps",
    re.IGNORECASE,
)


def parse(text: str) -> Any:
    """The values of a YAML document; raises DocumentError."""
    import yaml

    class Loader(yaml.SafeLoader):
        yaml_implicit_resolvers = {}  # noqa: RUF012 - PyYAML's own name and type
        depth = 0

        def compose_node(self, parent: Any, index: Any) -> Any:
            # depth limit: PyYAML's time grows with the square of the depth
            self.depth += 1
            if self.depth > _MOST_NESTED:
                raise DocumentError("not valid YAML: objects or lists nested too deeply")
            node = super().compose_node(parent, index)
            self.depth -= 1
            return node

        def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
            seen: set[str] = set()
            for key, _ in node.value:
                if not isinstance(key, yaml.ScalarNode):
                    raise DocumentError(f"line {key.start_mark.line + 1}: a key must be text")
                if key.value in seen:
                    line = key.start_mark.line + 1
                    raise DocumentError(
                        f"{brief_name(key.value)}: given twice in one object (line {line})"
                    )
                seen.add(key.value)
            found: dict[Any, Any] = super().construct_mapping(node, deep=deep)
            return found

        def construct_object(self, node: Any, deep: bool = False) -> Any:
            try:
                return super().construct_object(node, deep=deep)
            except DocumentError:
                raise
            except (ValueError, LookupError, AttributeError, TypeError, ArithmeticError):
                kind = node.tag.rpartition(":")[2]  # PyYAML converts by tag, and checks nothing
                raise DocumentError(
                    f"line {node.start_mark.line + 1}: {brief(node.value)} is no {kind}"
                ) from None

    for tag, pattern, first in (
        ("int", _INTEGER, "-+0123456789"),
        ("float", _FLOAT, "-+0123456789"),
        ("bool", _BOOL, "tf"),
        ("null", _NULL, ["n", "~", ""]),
    ):
        exactly = re.compile(f"(?:{pattern.pattern})$")
        Loader.add_implicit_resolver(f"tag:yaml.org,2002:{tag}", exactly, list(first))
    try:
        return yaml.load(text, Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f" at line {mark.line + 1} column {mark.column + 1}" if mark else ""
        raise DocumentError(f"not valid YAML: {error.problem}{where}") from None
    except yaml.YAMLError as error:
        raise DocumentError(f"not valid YAML: {str(error).splitlines()[0]}") from None


def scalar(value: object) -> str:
    """A value in YAML: plain if that is safe, else as JSON."""
    if isinstance(value, str) and _PLAIN.fullmatch(value):
        return value
    return json.dumps(value, ensure_ascii=False)


def flow(fields: Mapping[str, object]) -> str:
    """`{name: p0, mtu: 9000}`, without the fields that are None."""
    return (
        "{"
        + ", ".join(
            f"{name}: {scalar(value) if not isinstance(value, _Flow) else value.text}"
            for name, value in fields.items()
            if value is not None
        )
        + "}"
    )


class _Flow:
    def __init__(self, text: str) -> None:
        self.text = text


def nested(text: str) -> object:
    """A value for `flow` that is YAML already."""
    return _Flow(text)


class Fields:
    """An object of a document while it is read; every field must be known and read once."""

    def __init__(self, value: object, path: str, known: tuple[str, ...]) -> None:
        if not isinstance(value, dict):
            raise DocumentError(f"{path or 'the file'}: expected an object, got {found(value)}")
        self._value = value
        self._path = f"{path}." if path else ""
        for name in value:
            if name not in known:
                raise DocumentError(
                    f"{self._path}{brief_name(name)}: unknown field (known: {', '.join(known)})"
                )

    def path(self, name: str) -> str:
        return f"{self._path}{name}"

    def has(self, name: str) -> bool:
        return name in self._value

    def text(self, name: str) -> str:
        return text_at(self.path(name), self._required(name))

    def optional_text(self, name: str) -> str | None:
        return self.text(name) if self.has(name) else None

    def integer(self, name: str, default: int | None = None) -> int:
        value = self._required(name) if default is None else self._value.get(name, default)
        if type(value) is not int:
            raise DocumentError(f"{self.path(name)}: expected a whole number, got {found(value)}")
        return value

    def list(
        self, name: str, read: Callable[[object, str], _Value], *, required: bool = False
    ) -> tuple[_Value, ...]:
        """`read(element, path of element)` of every element; () if there is no such field."""
        value = self._required(name) if required else self._value.get(name, [])
        return list_at(self.path(name), value, read)

    def raw(self, name: str) -> object:
        return self._value.get(name)

    def _required(self, name: str) -> object:
        if name not in self._value:
            raise DocumentError(f"{self.path(name)}: missing field")
        value: object = self._value[name]
        return value


def list_at(path: str, value: object, read: Callable[[object, str], _Value]) -> tuple[_Value, ...]:
    if not isinstance(value, list):
        raise DocumentError(f"{path}: expected a list, got {found(value)}")
    return tuple(read(element, f"{path}[{i}]") for i, element in enumerate(value))


def text_at(value_path: str, value: object) -> str:
    if not isinstance(value, str) or not value:
        hint = f'; put it in quotes: "{brief(value)}"' if isinstance(value, (int, float)) else ""
        raise DocumentError(f"{value_path}: expected text, got {found(value)}{hint}")
    return value


def found(value: object) -> str:
    """A value in an error message: `nothing`, `a list`, `an object`, or itself."""
    if value is None:
        return "nothing"
    if isinstance(value, (list, dict)):
        return "a list" if isinstance(value, list) else "an object"
    return brief(value)
