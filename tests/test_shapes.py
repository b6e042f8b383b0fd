"""Functions that can be read at once: not too many parameters, not too many lines.

Where more parameters are right, a comment `# parameters: REASON`, on the line of the `def` or above
it, says why; so in six functions at most. A function's lines are those from its `def` to its end,
docstring included; in C++ from the first line of its head to its closing brace. Bindings are split
by topic and not exempt.
"""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

import rooms
from support.cpp_source import code_of

if TYPE_CHECKING:
    from collections.abc import Iterator

MOST_PARAMETERS = 8
MOST_TUPLES = 4  # of C++ that Python gets or gives without names
MOST_WIDE = 6  # functions with more parameters, each with its reason
MOST_LINES = 60
_REASON = re.compile(r"# parameters: \S")

Function = ast.FunctionDef | ast.AsyncFunctionDef


def _functions(tree: ast.Module) -> Iterator[tuple[Function, bool]]:
    """Every function, however deep, and whether its first parameter is `self` or the class."""
    for node in ast.walk(tree):
        for child in ast.iter_child_nodes(node):
            if isinstance(child, Function):
                static = any(getattr(d, "id", "") == "staticmethod" for d in child.decorator_list)
                yield child, isinstance(node, ast.ClassDef) and not static


def _parameters(function: Function, bound: bool) -> int:
    """All that a caller may give, `*args` and `**options` as one each."""
    given = function.args
    named = len(given.posonlyargs) + len(given.args) + len(given.kwonlyargs)
    return named + (given.vararg is not None) + (given.kwarg is not None) - bound


def _has_reason(function: Function, lines: list[str]) -> bool:
    """Beside the `def`, or above it and its decorators."""
    first = min([function.lineno, *(d.lineno for d in function.decorator_list)])
    around = (lines[function.lineno - 1], lines[first - 2] if first > 1 else "")
    return any(_REASON.search(line) for line in around)


def _wide(source: str, *, with_reason: bool = False) -> list[str]:
    """Functions with too many parameters, and a reason beside them or none."""
    return [
        f"{function.name} has {count} parameters, more than {MOST_PARAMETERS}"
        for function, bound in _functions(ast.parse(source))
        if (count := _parameters(function, bound)) > MOST_PARAMETERS
        and _has_reason(function, source.splitlines()) == with_reason
    ]


def _long(source: str) -> list[str]:
    """Functions with too many lines."""
    return [
        f"{function.name} has {lines} lines, more than {MOST_LINES}"
        for function, _ in _functions(ast.parse(source))
        if (lines := (function.end_lineno or 0) - function.lineno + 1) > MOST_LINES
    ]


_SCOPE = re.compile(r"\b(namespace|class|struct|union|enum)\b[^()]*$")


def _long_cpp(source: str) -> list[str]:
    """Functions of C++ with too many lines, found by their braces."""
    code = code_of(source)
    found = []
    heads: list[str | None] = []  # of open braces; None: a scope, such as a class
    begin = 0
    for brace in re.finditer(r"[{};]", code):
        head = code[begin : brace.start()].lstrip()
        if brace[0] == "{":
            outside = all(other is None for other in heads)
            heads.append(None if outside and _SCOPE.search(head) else head)
            if outside:
                first = brace.start() - len(head)
        elif brace[0] == "}" and (head := heads.pop() or "") and not any(heads):
            lines = code.count("\n", first, brace.start()) + 1
            if "(" in head and lines > MOST_LINES:
                name = re.search(r"[~\w:]+(?=\s*\()", head)
                found.append(f"{name and name[0]} has {lines} lines, more than {MOST_LINES}")
        begin = brace.end()
    return found


def _sources() -> Iterator[tuple[str, str]]:
    """Every module of the package (`launcher` and `models` are in it), each once, and its text."""
    for name, path in rooms.modules().items():
        yield name, path.read_text(encoding="utf-8")


def test_every_module_is_looked_at_once() -> None:
    paths = [path.resolve() for path in rooms.modules().values()]
    assert len(paths) == len(set(paths))
    folders = ("torch_topoopt", "launcher", "models")
    assert set(paths) == {
        path.resolve()
        for folder in folders
        for path in (rooms.ROOT / folder).rglob("*.py")
        if not path.is_symlink()
    }


def test_no_function_has_many_parameters_without_a_reason() -> None:
    assert [f"{name}: {wrong}" for name, source in _sources() for wrong in _wide(source)] == []


def test_few_functions_have_many_parameters() -> None:
    wide = [
        f"{name}: {one}" for name, source in _sources() for one in _wide(source, with_reason=True)
    ]
    assert len(wide) <= MOST_WIDE, "\n".join(wide)


def test_no_function_is_longer_than_a_screen() -> None:
    assert [f"{name}: {wrong}" for name, source in _sources() for wrong in _long(source)] == []


def test_no_function_of_cpp_is_longer_than_a_screen() -> None:
    files = [path for path in (rooms.ROOT / "csrc").rglob("*") if path.suffix in (".cc", ".h")]
    assert files
    assert [f"{path}: {wrong}" for path in files for wrong in _long_cpp(path.read_text())] == []


def test_few_tuples_cross_the_border_of_cpp() -> None:
    tuples = [
        f"{path.name}: {found}"
        for path in sorted((rooms.ROOT / "csrc" / "bind").glob("*.cc"))
        for found in re.findall(r"std::tuple<[^;{]*", path.read_text())
    ]
    assert len(tuples) <= MOST_TUPLES, "\n".join(tuples)


def test_a_wide_function_would_be_found() -> None:
    eight = "a, b, c, d, e, f, g, h"
    assert _wide(f"def narrow({eight}): ...") == []
    assert _wide(f"class C:\n    def narrow(self, {eight}): ...") == []
    found = ["wide has 9 parameters, more than 8"]
    assert _wide(f"def wide({eight}, *, i): ...") == found
    assert _wide(f"async def wide({eight}, **options): ...") == found
    assert _wide(f"class C:\n    @staticmethod\n    def wide(i, {eight}): ...") == found
    assert _wide(f"def outer():\n    def wide({eight}, i, /): ...") == found
    assert _wide(f"# parameters:\ndef wide({eight}, i): ...") == found
    assert _wide(f"def wide({eight}, i):  # parameters: torch calls it so\n    pass") == []
    assert _wide(f"# parameters: torch calls it so\ndef wide({eight}, i): ...") == []
    assert _wide(f"# parameters: as torch\n@cache\ndef wide({eight}, i): ...") == []
    assert _wide(f"# parameters: as torch\ndef wide({eight}, i): ...", with_reason=True) == found


def test_a_long_function_would_be_found() -> None:
    body = "    pass\n" * (MOST_LINES - 1)
    assert _long(f"def short():\n{body}") == []
    assert _long(f"def long():\n{body}    pass\n") == ["long has 61 lines, more than 60"]


def test_a_long_function_of_cpp_would_be_found() -> None:
    body = "  if (a) { b('{'); }  // {\n" * (MOST_LINES - 2)
    text = "namespace n {\nclass C {\n  int x{2};\n%s};\n}\n"
    assert _long_cpp(text % f"int f(int a)\n    const {{\n{body[:-1]}\n}}") == [
        "f has 61 lines, more than 60"
    ]
    assert _long_cpp(text % f"int C::f(int a) {{\n{body}}}") == []
    assert _long_cpp(f"C::C() : a_(1) {{\n{body}\n}}") == ["C::C has 61 lines, more than 60"]
