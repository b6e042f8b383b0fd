"""FILE.py:NAME: functions in users' files, and one-line errors for their exceptions."""

from __future__ import annotations

import importlib.util
import sys
import traceback
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import ModuleType


class UserFunctionError(ValueError):
    """A user's file or function that cannot be used: option, file, and the cause in one line."""


@dataclass(frozen=True)
class UserFunction:
    """A function of a user's file, called for the option `field`."""

    field: str
    path: Path
    function: Callable[..., Any]
    name: str

    @classmethod
    def load(cls, field: str, spec: str) -> Self:
        """The function named by `spec`, FILE.py:NAME.

        Raises UserFunctionError for a missing file, a file whose import raises, and a name that is
        missing or not callable.
        """
        file, _, name = spec.rpartition(":")
        if not file:
            raise UserFunctionError(f"{field}: {spec} names no function; write {spec}:NAME")
        path = Path(file)
        with importable(path.parent):
            module = load_module(field, path)
        return cls(field, path, function_of(field, module, path, name), name)

    def __str__(self) -> str:
        return f"{self.path.name}:{self.name}"

    def __call__(self, *args: Any, **keywords: Any) -> Any:
        """The result of the function; an exception of it becomes a UserFunctionError."""
        with importable(self.path.parent), user_code(self.field, f"{self}()", self.path):
            return self.function(*args, **keywords)

    def returned(self, value: object, expected: str) -> UserFunctionError:
        """The error for a result of the wrong type."""
        return UserFunctionError(
            f"{self.field}: {self}() returned {type(value).__name__}, not {expected}"
        )

    @contextmanager
    def checking_result(self) -> Iterator[None]:
        """Raises the violation of a rule by the function's result as a UserFunctionError."""
        try:
            yield
        except (ValueError, TypeError) as error:
            raise UserFunctionError(f"{self.field}: the result of {self}(): {error}") from error


def is_file(spec: str) -> bool:
    """Whether `spec` names a user's file rather than a built-in."""
    return spec.endswith(".py") or ".py:" in spec


@contextmanager
def importable(folder: Path) -> Iterator[None]:
    """Makes the file's neighbours importable while user code runs, as for a script."""
    entry = str(folder.resolve())
    sys.path.insert(0, entry)
    try:
        yield
    finally:
        sys.path.remove(entry)


def load_module(field: str, path: Path) -> ModuleType:
    """Imports a user's file; raises UserFunctionError."""
    if not path.is_file():
        raise UserFunctionError(f"{field}: there is no file {path}")
    name = f"_topoopt_script_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise UserFunctionError(f"{field}: {path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses of the file look up their module there
    with user_code(field, f"importing {path}, without its code under __main__,", path):
        spec.loader.exec_module(module)
    return module


def function_of(field: str, module: ModuleType, path: Path, name: str) -> Callable[..., Any]:
    """The callable `name` of a user's module; raises UserFunctionError if there is none."""
    function = getattr(module, name, None)
    if not callable(function):
        raise UserFunctionError(f"{field}: {path} has no callable {name!r} at module level")
    return function  # type: ignore[no-any-return]  # a module's attribute


@contextmanager
def user_code(field: str, what: str, path: Path) -> Iterator[None]:
    """One line with the cause of a user file's exception, and the line number if known."""
    try:
        yield
    except UserFunctionError:
        raise
    except (Exception, SystemExit) as error:  # a script may raise anything
        file, frames = path.resolve(), traceback.extract_tb(error.__traceback__)
        lines = [frame.lineno for frame in frames if Path(frame.filename).resolve() == file]
        where = f" (line {lines[-1]})" if lines else ""
        raise UserFunctionError(f"{field}: {what} raised {one_line(error)}{where}") from error


def one_line(error: BaseException) -> str:
    """The kind of an exception and the first line of its text."""
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0]}" if text else type(error).__name__
