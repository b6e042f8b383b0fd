"""Cached measurements for later jobs, in $XDG_CACHE_HOME/torch_topoopt or ~/.cache."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

from torch_topoopt.plan.codec import DocumentError

COST_MODEL_VARIABLE = "TOPOOPT_COST_MODEL"
_WAYS = ("kept", "measure")


def kept_file(kind: str, key: Any) -> Path:
    """The file of the measurements of `kind` for the JSON value `key`."""
    known = json.dumps(key, sort_keys=True)
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    name = f"{kind}-{hashlib.sha256(known.encode()).hexdigest()[:16]}.json"
    return Path(base) / "torch_topoopt" / name


def measures_again() -> bool:
    """Whether this job ignores cached measurements; raises DocumentError."""
    way = os.environ.get(COST_MODEL_VARIABLE, _WAYS[0])
    if way not in _WAYS:
        raise DocumentError(f"{COST_MODEL_VARIABLE}: {way!r} is not one of {', '.join(_WAYS)}")
    return way == "measure"
