"""C++ as the tests of structure read it: by its braces."""

from __future__ import annotations

import re

# What has no braces of code: comments, texts, characters and directives of the preprocessor.
_NO_CODE = re.compile(
    r'//[^\n]*|/\*.*?\*/|R"\(.*?\)"|"(?:\\.|[^"\\\n])*"|(?<!\w)\'(?:\\.|[^\'\\\n])+\''
    r"|^[ \t]*#(?:[^\n]*\\\n)*[^\n]*$",
    re.DOTALL | re.MULTILINE,
)


def code_of(source: str) -> str:
    """The same lines with blanks where there is no code."""
    return _NO_CODE.sub(lambda found: re.sub(r"\S", " ", found[0]), source)
