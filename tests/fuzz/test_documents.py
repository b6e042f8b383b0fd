"""Whatever a document has become, it is read, or refused in one line."""

from __future__ import annotations

import os
import resource
from typing import TYPE_CHECKING

import documents
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from torch_topoopt.plan.codec import DocumentError
from torch_topoopt.sim.flows import read_flows

if TYPE_CHECKING:
    from pathlib import Path

# `make fuzz` gives more
_INPUTS = int(os.environ.get("FUZZ_DOCUMENTS", "150"))
_MOST_GROWTH_KIB = 256 << 10
_LONGEST_LINE = 2000
changing = settings(
    max_examples=_INPUTS,
    deadline=None,
    database=None,
    derandomize="FUZZ_DOCUMENTS" not in os.environ,
    suppress_health_check=list(HealthCheck),
)


@pytest.mark.timeout(3600 if "FUZZ_DOCUMENTS" in os.environ else 120)
@pytest.mark.parametrize("name", documents.KINDS)
def test_documents(name: str) -> None:
    kind = documents.KINDS[name]
    for seed in kind.seeds:
        kind.read(seed)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    @changing
    @given(documents.changed_texts(kind.seeds))
    def read(text: str) -> None:
        said = ""
        try:
            kind.read(text)
        except DocumentError as error:
            said = str(error)
        assert len(said.strip().splitlines()) <= 1
        assert len(said) < _LONGEST_LINE

    read()
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < _MOST_GROWTH_KIB


@pytest.mark.timeout(3600 if "FUZZ_DOCUMENTS" in os.environ else 120)
def test_flow_files(tmp_path: Path) -> None:
    """The same text as of tests/fuzz/flow_file.cc, by way of a file."""
    path = tmp_path / "flows.txt"

    @changing
    @given(st.one_of(documents.changed_texts((documents.FLOWS,)), st.binary(max_size=200)))
    def read(content: str | bytes) -> None:
        path.write_bytes(
            content if isinstance(content, bytes) else content.encode("utf-8", "surrogatepass")
        )
        said = f"{path}: line "
        try:
            read_flows(str(path))
        except ValueError as error:
            said = str(error)
        assert said.startswith((f"{path}: line ", f"{path}: nodes: "))

    read()
