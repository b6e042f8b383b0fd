"""Facts of a script by its syntax tree; importing it might start training."""

from __future__ import annotations

import ast
import re
import tokenize
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from torch_topoopt.launcher.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


# of torch, and of its threading libraries
_IMPORT_VARIABLE = re.compile(
    r"(OMP|GOMP|KMP|MKL|OPENBLAS|ATEN|PYTORCH|TORCH(?!ELASTIC)\w*)_[A-Z0-9_]+$"
)
# modules of PyTorch that shard models
_SHARDING = ("torch.distributed.fsdp", "torch.distributed.optim", "torch.distributed.tensor")


@dataclass(frozen=True)
class ScriptSyntax:
    """`builds_model`: a module-level build_model() without required arguments exists. `guarded`:
    code that must not run on import is under `if __name__ == "__main__"`. `imports` are the modules
    in its import statements, anywhere. `import_variables` are the environment variables in it that
    are read when torch is imported."""

    builds_model: bool
    guarded: bool
    imports: frozenset[str]
    import_variables: frozenset[str] = frozenset()

    @property
    def has_model(self) -> bool:
        """Whether the script can be imported for its model without training."""
        return self.builds_model and self.guarded

    @property
    def may_shard(self) -> bool:
        """Whether the script imports what shards models."""
        return any(module.startswith(_SHARDING) for module in self.imports)


def read(path: str) -> ScriptSyntax:
    """Raises InputError unless the file is Python."""
    try:
        with tokenize.open(path) as file:  # in its declared encoding
            tree = ast.parse(file.read(), path)
    except SyntaxError as error:
        where = f", line {error.lineno}" if error.lineno else ""
        raise InputError(f"{path}{where}: {error.msg}") from None
    except (UnicodeDecodeError, ValueError) as error:
        raise InputError(f"{path}: not a Python script: {error}") from None
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from None
    statements = list(_at_module_level(tree.body))
    return ScriptSyntax(
        builds_model=any(_makes_build_model(statement) for statement in statements),
        guarded=any(_is_guard(statement) for statement in statements),
        imports=frozenset(_imported(tree)),
        import_variables=frozenset(filter(_IMPORT_VARIABLE.match, _texts(tree))),
    )


def is_of_script(model: str, script: str, syntax: ScriptSyntax | None) -> bool:
    """Whether `script` trains MODEL, as far as its syntax shows.

    MODEL is its own build_model() or callable, one of a file that it imports, a saved OpGraph of
    its name, or an imported shipped model. `syntax` is None if the script is not Python.
    """
    stem = Path(script).stem
    imports = syntax.imports if syntax else frozenset()
    if model.endswith(".py") or ".py:" in model:
        path = Path(model if model.endswith(".py") else model.rpartition(":")[0])
        same = path.exists() and Path(script).exists() and path.samefile(script)
        return same or _names_module(imports, path.stem)
    if model.endswith(".json"):
        return Path(model).stem == stem
    name = model.partition(":")[0]
    return name == stem or any(
        module.startswith("torch_topoopt.models")
        and module.split(".")[2:3] in ([], ["MODELS"], [name])
        for module in imports
    )


def _names_module(imports: frozenset[str], stem: str) -> bool:
    return any(stem in module.split(".") for module in imports)


def _at_module_level(body: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    """All statements that are executed in the module's own scope, nested ones included."""
    for statement in body:
        yield statement
        if isinstance(statement, ast.If | ast.Try | ast.With):
            for part in ("body", "orelse", "finalbody"):
                yield from _at_module_level(getattr(statement, part, []))


def _makes_build_model(statement: ast.stmt) -> bool:
    name = "build_model"
    if isinstance(statement, ast.FunctionDef):
        arguments = statement.args
        named = [*arguments.posonlyargs, *arguments.args]
        needed = len(named) - len(arguments.defaults) + arguments.kw_defaults.count(None)
        return statement.name == name and not needed
    if isinstance(statement, ast.Import | ast.ImportFrom):
        return any((alias.asname or alias.name) == name for alias in statement.names)
    if isinstance(statement, ast.Assign):
        return any(isinstance(t, ast.Name) and t.id == name for t in statement.targets)
    return False


def _is_guard(statement: ast.stmt) -> bool:
    if not (isinstance(statement, ast.If) and isinstance(statement.test, ast.Compare)):
        return False
    sides = [statement.test.left, *statement.test.comparators]
    return any(isinstance(side, ast.Name) and side.id == "__name__" for side in sides) and any(
        isinstance(side, ast.Constant) and side.value == "__main__" for side in sides
    )


def _texts(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def _imported(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            names = (f"{node.module or ''}.{alias.name}" for alias in node.names)
            yield from (name.lstrip(".") for name in names)
