"""Documents that others may have written: right ones, and what hypothesis makes of them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hypothesis import strategies as st
from support.plans import make_ring_plan
from support.small_op_graphs import chain

from torch_topoopt.fabric.cluster_file import strict_yaml
from torch_topoopt.fabric.cluster_file.cluster_file import ClusterFile
from torch_topoopt.fabric.cluster_file.mlx_hostfile import cluster_of_hostfile, is_hostfile
from torch_topoopt.op_graph import OpGraph
from torch_topoopt.plan import Placement, Plan, StrategyFile

if TYPE_CHECKING:
    from collections.abc import Callable

FLOWS = """\
nodes 3 hosts 2
link 0 0 2 100e9 1000
link 1 2 1 100e9 1000
flow 0 0 1 1000000 path 2 0 1 deps 0
flow 1 0 1 64 path 2 0 1 deps 1 0
"""
_CLUSTER = """\
version: 1
name: lab
servers:
  - {name: h0, management: 10.0.0.1, ports: [{name: p0, address: 10.1.0.1/30, bandwidth: 100Gbps}]}
  - {name: h1, management: 10.0.0.2, accelerators: 4, ports: [{name: p0, address: 10.1.0.2/30}]}
cables:
  - [h0:p0, h1:p0]
"""
_HOSTFILE = """[
  {"ssh": "ann@a", "ips": ["192.168.0.1"]}, {"ssh": "b", "ips": ["192.168.0.2"]}
]"""
_INTEGERS = st.one_of(
    st.integers(-3, 9),
    st.sampled_from([2**31 - 1, 2**31, 2**63, -(2**63), 2**64, 10**9, 10**400]),
)
_VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), _INTEGERS, st.floats(), st.text(max_size=20)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=6,
)
_WORDS = st.sampled_from(
    ["[" * 2000, "{" * 2000, "- " * 500, "9" * 5000, "!!int x", "&a [*a]", "\0", "\ud800", "\x85",
     "1e999", "-0", "NaN", "null", "true", "#", ":", "nodes 1 hosts 1", "path 999999999999 0"]
)  # fmt: skip


def _read_cluster(text: str) -> object:
    value = strict_yaml.parse(text)
    if is_hostfile(value):
        return cluster_of_hostfile(value, "hosts")
    return ClusterFile.from_value(value)


@dataclass(frozen=True)
class Kind:
    """A kind of document: right texts, and how one is read."""

    seeds: tuple[str, ...]
    read: Callable[[str], object]


def _strategy() -> str:
    placement = Placement("fc1", (0, 1), attribute=2)
    return StrategyFile(StrategyFile.VERSION, "mlp", 64, 2, (placement,)).to_json()


KINDS: dict[str, Kind] = {
    "Plan": Kind(
        (make_ring_plan(3).to_json(), make_ring_plan(2, ports="simplex").to_json()),
        Plan.from_json,
    ),
    "OpGraph": Kind((chain(3).to_json(),), OpGraph.from_json),
    "strategy": Kind((_strategy(),), StrategyFile.from_json),
    "cluster": Kind((_CLUSTER, _HOSTFILE), _read_cluster),
}


@st.composite
def changed_texts(draw: st.DrawFn, seeds: tuple[str, ...]) -> str:
    """A right text with other values, fewer or more of them, or other characters."""
    text = draw(st.sampled_from(seeds))
    if text.startswith(("{", "[")) and draw(st.booleans()):
        value = json.loads(text)
        for _ in range(draw(st.integers(1, 3))):
            value = _change(draw, value)
        return json.dumps(value)
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(text)))
        end = min(len(text), at + draw(st.integers(0, 12)))
        inserted = draw(st.one_of(_WORDS, st.text(max_size=6), _INTEGERS.map(str)))
        text = text[:at] + inserted + text[end:]
    return text


def _change(draw: st.DrawFn, value: Any) -> Any:
    """`value` with one part of it replaced, left out, renamed or doubled."""
    if not isinstance(value, dict | list) or not value or draw(st.integers(0, 4)) == 0:
        return draw(_VALUES)
    keys = list(value) if isinstance(value, dict) else list(range(len(value)))
    key = draw(st.sampled_from(keys))
    what = draw(st.sampled_from(["inside", "inside", "inside", "left out", "more"]))
    if what == "inside":
        value[key] = _change(draw, value[key])
    elif what == "left out":
        del value[key]
    elif isinstance(value, dict):
        value[draw(st.text(max_size=8))] = value[key]
    else:
        value.append(value[key])
    return value
