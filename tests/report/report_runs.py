"""Run folders for the tests of the report: circulant networks with the traffic that rings cause."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import networkx

from torch_topoopt.op_graph import Operand, Operator, OpGraph
from torch_topoopt.plan import (
    Cluster,
    Demand,
    Group,
    GroupDemand,
    Link,
    Network,
    PairDemand,
    Placement,
    Plan,
    Prediction,
    Ring,
    Round,
    Route,
    SearchSample,
)

if TYPE_CHECKING:
    from pathlib import Path

COMMAND = ["topoopt", "run", "--servers", "4", "--degree", "2", "digits.py", "--name", "a b; c"]
EPOCHS, STEPS_PER_EPOCH = 12, 45


def vgg_graph(model: str = "vgg-digits", batch_size: int = 128) -> OpGraph:
    """Eight convolutions and three linear layers with ReLUs, sizes as such a network has them."""
    operators: list[Operator] = []
    channels, side = 1, 32

    def add(name: str, kind: str, forward: int, parameters: int, output: int) -> None:
        before = operators[-1].output_bytes if operators else 4 * batch_size * 32 * 32
        operands = (Operand(len(operators) - 1, before, before),) if operators else ()
        operator = Operator(
            name, kind, forward * batch_size, 2 * forward * batch_size, 4 * parameters,
            4 * parameters, 4 * batch_size * output, before, before + 4 * parameters, True,
            operands,
        )  # fmt: skip
        operators.append(operator)

    for i, width in enumerate((64, 64, 128, 128, 256, 256, 512, 512)):
        parameters = channels * width * 9 + width
        add(
            f"features.{2 * i}", "Conv2d", 2 * side * side * parameters, parameters, width * side**2
        )
        add(f"features.{2 * i + 1}", "ReLU", width * side**2, 0, width * side**2)
        channels, side = width, side // 2 if i % 2 else side
    inputs = 512 * side * side
    for i, width in enumerate((4096, 1024, 10)):
        parameters = inputs * width + width
        add(f"classifier.{i}", "Linear", 2 * parameters, parameters, width)
        inputs = width
    return OpGraph(1, model, batch_size, tuple(operators)).validate()


def circulant(servers: int, strides: tuple[int, ...]) -> tuple[tuple[Link, ...], tuple[Ring, ...]]:
    """Duplex cables of every stride, and both orientations of every stride's ring."""
    links: list[Link] = []
    rings: list[Ring] = []
    for j, stride in enumerate(strides):
        for server in range(servers):
            link = Link(server, 2 * j, (server + stride) % servers, 2 * j + 1)
            links += [link, link.reverse]
        order = tuple(i * stride % servers for i in range(servers))
        rings += [
            Ring(order, 1 / (2 * len(strides))),
            Ring((0, *order[:0:-1]), 1 / (2 * len(strides))),
        ]
    return tuple(links), tuple(rings)


def shortest_routes(servers: int, links: tuple[Link, ...]) -> tuple[Route, ...]:
    graph = networkx.DiGraph((link.source, link.target) for link in links)
    paths = dict(networkx.all_pairs_shortest_path(graph))
    pairs = [(a, b) for a in range(servers) for b in range(servers) if a != b]
    return tuple(Route(tuple(paths[a][b]), 1.0) for a, b in pairs if len(paths[a][b]) > 2)


def link_bytes(network: Network, demand: Demand) -> tuple[int, ...]:
    """A ring over k servers sends 2 (k - 1) / k of its share over each hop; pairs follow routes."""
    table = network.routes_by_pair()
    load = {(link.source, link.target): 0.0 for link in network.links}

    def send(source: int, target: int, size_bytes: float) -> None:
        for route in table[source, target]:
            for hop in zip(route.servers, route.servers[1:], strict=False):
                load[hop] += size_bytes * route.weight

    for group, wanted in zip(network.groups, demand.groups, strict=True):
        for ring in group.rings:
            size = len(ring.servers)
            for hop in zip(ring.servers, ring.servers[1:] + ring.servers[:1], strict=True):
                send(*hop, ring.share * wanted.size_bytes * 2 * (size - 1) / size)
    for pair in demand.pairs:
        send(pair.source, pair.target, pair.size_bytes)
    return tuple(round(load[link.source, link.target]) for link in network.links)


def make_plan(
    servers: int, strides: tuple[int, ...], space: str = "data-parallel", model: str = "vgg-digits"
) -> Plan:
    """A data-parallel plan, or a "full" one in which half of the servers share the classifier."""
    links, rings = circulant(servers, strides) if servers > 1 else ((), ())
    graph, everyone = vgg_graph(model), tuple(range(servers))
    groups, pairs = [Group(everyone, rings)], []
    half = tuple(range(0, servers, 2))
    full = space == "full"
    demands = [GroupDemand(everyone, graph.parameter_gradient_bytes)]
    if full:
        classifier = sum(o.parameter_gradient_bytes for o in graph.operators if "cl" in o.name)
        demands = [
            GroupDemand(everyone, graph.parameter_gradient_bytes - classifier),
            GroupDemand(half, classifier),
        ]
        groups.append(Group(half, (Ring(half, 0.5), Ring(half[::-1], 0.5))))
        pairs = [PairDemand(a, b, 250_000) for a in everyone for b in half if a != b]
    network = Network(links, tuple(groups), shortest_routes(servers, links))
    demand = Demand(tuple(demands), tuple(pairs))
    loads = link_bytes(network, demand)
    slow, compute = max(loads, default=0) / 125e6, 0.0402
    best, one_ring, switch = compute + slow, compute + 1.83 * slow, compute + 0.9 * slow
    samples = [
        SearchSample(40 * i, 0.21 - 0.0007 * i + 0.011 * (i * 37 % 11) / 11, 0.21 - 0.0007 * i)
        for i in range(120)
    ]
    placements = [
        Placement(o.name, half if full and "classifier" in o.name else everyone)
        for o in graph.operators
    ]
    return Plan(
        1, model, 128, 7, "paper", "full" if full else "data-parallel",
        Cluster(servers, 2 * len(strides) if servers > 1 else 1, 1.0),
        network, demand, Prediction(best, compute, one_ring, switch, loads),
        (
            Round(1.3 * best, 1.2 * best, 1.9 * best, best, True),
            Round(1.1 * best, best, one_ring, switch, True),
            Round(1.1 * best, best, one_ring, switch, False),
        ),
        tuple(samples) if full else (), tuple(placements),
    ).validate()  # fmt: skip


def train_events(with_steps: bool = True) -> list[dict[str, Any]]:
    events = []
    for epoch in range(1, EPOCHS + 1):
        event: dict[str, Any] = {
            "event": "train", "time_s": 9.5 + 4.1 * epoch, "epoch": epoch,
            "train_loss": round(2.4 * 0.62**epoch, 5),
            "test_loss": round(2.3 * 0.66**epoch + 0.05, 5),
            "test_accuracy": round(0.985 - 0.72 * 0.6**epoch, 5), "elapsed_s": 4.1 * epoch,
        }  # fmt: skip
        if with_steps:
            event["steps"] = STEPS_PER_EPOCH * epoch
        events.append(event)
    return events


def make_events(plan: Plan, with_steps: bool = True, exit_code: int = 0) -> list[dict[str, Any]]:
    """A whole run: measured traffic is the predicted one of every step, plus one broadcast."""
    steps = EPOCHS * STEPS_PER_EPOCH
    cluster = plan.cluster
    events: list[dict[str, Any]] = [
        {"event": "run", "time_s": 0.0, "command": COMMAND, "servers": cluster.servers,
         "degree": cluster.degree, "seed": plan.seed, "time": "2026-01-31T12:00:00+00:00"},
        {"event": "stage", "time_s": 1.2, "name": "profile", "seconds": 1.1834},
        {"event": "stage", "time_s": 4.2, "name": "co-optimise", "seconds": 3.0021},
        {"event": "stage", "time_s": 4.5, "name": "wire", "seconds": 0.2218},
        *train_events(with_steps),
    ]  # fmt: skip
    for i, link in enumerate(plan.network.links):
        sent = plan.prediction.link_bytes[i] * steps + 40_000_000 * (i % 3)
        events.append(
            {"event": "link", "source": link.source, "source_port": link.source_port,
             "target": link.target, "target_port": link.target_port, "sent_bytes": sent,
             "relayed_bytes": sent * (i % 4) // 10}
        )  # fmt: skip
    events.append({"event": "stage", "time_s": 62.0, "name": "train", "seconds": 57.4})
    return [*events, {"event": "end", "time_s": 62.1, "exit_code": exit_code}]


def as_lines(events: list[dict[str, Any]]) -> str:
    return "".join(json.dumps(event) + "\n" for event in events)


def write_run(folder: Path, plan: Plan, events: list[dict[str, Any]]) -> Path:
    """Writes the three files of a run into `folder`, which it makes."""
    folder.mkdir(parents=True, exist_ok=True)
    vgg_graph(plan.model).save(folder / "opgraph.json")
    plan.save(folder / "plan.json")
    (folder / "metrics.jsonl").write_text(as_lines(events))
    return folder
