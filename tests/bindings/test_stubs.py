"""The stubs of the extension modules say what the modules say."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

_CSRC = Path(__file__).parents[2] / "csrc"


@pytest.mark.parametrize("module", ["_core", "_backend"])
def test_the_committed_stub_is_the_generated_one(module: str) -> None:
    spec = importlib.util.spec_from_file_location("stubs", _CSRC / "bind" / "stubs.py")
    assert spec is not None
    assert spec.loader is not None
    stubs = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(stubs)
    committed = (stubs.FOLDER / f"{module}.pyi").read_text(encoding="utf-8")
    assert committed == stubs.stub(module), "make stubs"
