"""AllReduces of plans as custom collectives, run as ASTRA-sim runs them."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from typing import TYPE_CHECKING

import pytest
import yaml
from support.small_op_graphs import chain
from test_chakra import plan_for

from torch_topoopt.profile.chakra_format import ChakraTrace, NodeType, decode
from torch_topoopt.search.strategies import data_parallel
from torch_topoopt.tools.export import msccl
from torch_topoopt.tools.export.custom_collectives import chakra_of, custom_collectives
from torch_topoopt.tools.export.formats import FORMATS, Exported

if TYPE_CHECKING:
    from collections.abc import Sequence

TAG = 1000


def run(traces: Sequence[ChakraTrace]) -> Counter[tuple[int, int]]:
    """Bytes from rank to rank. A node runs when its dependencies have; a receive also needs a
    message of its source and tag (CustomAlgorithm.cc, issue)."""
    sent: Counter[tuple[int, int]] = Counter()
    waiting: defaultdict[tuple[int, int, int], list[int]] = defaultdict(list)
    left = [{node.number: node for node in trace.nodes} for trace in traces]
    progress = True
    while progress:
        progress = False
        for rank, nodes in enumerate(left):
            for node in list(nodes.values()):
                if not nodes.keys().isdisjoint(node.data_deps):
                    continue
                size = node.attributes.get("comm_size")
                if node.kind == NodeType.COMM_SEND:
                    other, tag = (int(node.attributes[n]) for n in ("comm_dst", "comm_tag"))
                    waiting[rank, other, tag].append(int(size or 0))
                    sent[rank, other] += int(size or 0)
                elif node.kind == NodeType.COMM_RECV:
                    source, tag = (int(node.attributes[n]) for n in ("comm_src", "comm_tag"))
                    messages = waiting[source, rank, tag]
                    if not messages:
                        continue
                    assert messages.pop(0) == size
                del nodes[node.number]
                progress = True
    assert not any(left), "a deadlock"
    assert not any(waiting.values()), "a message that no rank receives"
    return sent


@pytest.mark.parametrize(("servers", "degree"), [(2, 1), (6, 2), (8, 4)])
def test_it_ends_and_sends_what_rings_send(servers: int, degree: int) -> None:
    graph = chain(2)
    plan = plan_for(graph, data_parallel(graph, servers), servers, degree)
    size = 64 * 64 * servers
    sent = run(chakra_of(msccl.all_reduce(plan), size, TAG))
    assert sum(sent.values()) == 2 * (servers - 1) * size
    assert set(sent) <= {(link.source, link.target) for link in plan.network.links}


def test_the_all_to_all_waits_at_relays() -> None:
    graph = chain(2)
    plan = plan_for(graph, data_parallel(graph, 6), 6)
    algorithm = msccl.all_to_all(plan)
    sent = run(chakra_of(algorithm, 6 * 4096, TAG))
    assert sum(sent.values()) == 4096 * 6 * (2 * 1 + 2 * 2 + 3)  # hops from one server of a ring


def test_the_workload_names_a_collective_for_each_size() -> None:
    graph = chain(3)
    plan = plan_for(graph, data_parallel(graph, 4), 4)
    files = FORMATS["astra-sim"].files(Exported(plan, lambda: graph, lambda: graph))
    assert json.loads(files["system-rings.json"])["per-node-custom-implementation"] == "rings.yml"
    names = yaml.safe_load(files["rings.yml"])
    assert set(names.values()) == {"all_reduce_1000000"}
    for rank in range(4):
        workload = decode(files[f"workload.{rank}.et"]).nodes
        reduced = [node for node in workload if node.kind == NodeType.COMM_COLL]
        assert [node.number for node in reduced] == sorted(names)
        assert max(names) < 2**31, "ASTRA-sim's int"
        numbers = {node.number for node in workload}
        assert len(numbers) == len(workload)
        assert all(numbers.issuperset(node.data_deps) for node in workload)
    ranks = [decode(files[f"all_reduce_1000000.{rank}.et"]) for rank in range(4)]
    assert sum(run(ranks).values()) == pytest.approx(2 * 3 * 1_000_000, rel=1e-4)


def test_a_plan_without_rings_over_all_servers_says_so() -> None:
    graph = chain(2)
    plan = plan_for(graph, data_parallel(graph, 1), 1)
    found = custom_collectives(plan, (ChakraTrace(()),))
    assert not found.nodes
    assert "1 server" in found.missing
