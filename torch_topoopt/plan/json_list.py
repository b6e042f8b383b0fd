"""Files that are one JSON list, such as flows to route or jobs that ask for boards."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from torch_topoopt.plan.file_kinds import wrong_kind


def read_list(name: str, path: str) -> list[Any]:
    """The JSON list in a file. Raises ValueError in one line, beginning with `name`."""
    try:
        rows = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"{name}: {path}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:  # of JSON, or of UTF-8
        problem = wrong_kind(path, f"list of {name}") or f"not JSON: {error}"
        raise ValueError(f"{name}: {path}: {problem}") from None
    if not isinstance(rows, list):
        problem = wrong_kind(path, f"list of {name}") or "not a JSON list"
        raise ValueError(f"{name}: {path}: {problem}")
    return rows
