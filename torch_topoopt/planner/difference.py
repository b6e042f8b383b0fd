"""Differences of two plans: cluster, strategy, network, routes, prediction."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

if TYPE_CHECKING:
    from torch_topoopt.plan import Link, Placement, Plan
    from torch_topoopt.plan.layout import Layout


@dataclass(frozen=True)
class Changed:
    """A field that differs between plan A and plan B."""

    field: str
    a: Any
    b: Any


class Moved(NamedTuple):
    """An operator that is placed differently; None: not in that plan."""

    operator: str
    a: Placement | None
    b: Placement | None


@dataclass(frozen=True)
class PlanDifference:
    """Links are pairs (source, target), as often as only one of the plans has them; groups are
    those with different rings. Routes are compared for all ordered pairs that either plan
    routes."""

    JSON_FIELDS: ClassVar = (
        "same=is_empty", "fields", "operators",
        ("links", "in_both=links_in_both", "only_in_a=links_only_in_a",
         "only_in_b=links_only_in_b"),
        "groups", ("routes", "changed=routes_changed", "in_all=routes_in_all"), "prediction",
    )  # fmt: skip

    fields: tuple[Changed, ...]
    operators: tuple[Moved, ...]
    links_only_in_a: tuple[tuple[int, int], ...]
    links_only_in_b: tuple[tuple[int, int], ...]
    links_in_both: int
    groups: tuple[tuple[int, ...], ...]
    routes_changed: int
    routes_in_all: int
    prediction: tuple[Changed, ...]

    @property
    def is_empty(self) -> bool:
        """Whether the plans are equivalent."""
        return not (
            self.fields
            or self.operators
            or self.links_only_in_a
            or self.links_only_in_b
            or self.groups
            or self.routes_changed
            or self.prediction
        )


def difference(a: Plan, b: Plan) -> PlanDifference:
    """From plan `a` to plan `b`."""
    links_a, links_b = Counter(map(_ends, a.network.links)), Counter(map(_ends, b.network.links))
    routes_a, routes_b = a.network.routes_by_pair(), b.network.routes_by_pair()
    pairs = routes_a.keys() | routes_b.keys()
    rings_a = {group.servers: group.rings for group in a.network.groups}
    rings_b = {group.servers: group.rings for group in b.network.groups}
    return PlanDifference(
        fields=_changed_fields(a, b),
        operators=_moved(a, b),
        links_only_in_a=tuple(sorted((links_a - links_b).elements())),
        links_only_in_b=tuple(sorted((links_b - links_a).elements())),
        links_in_both=(links_a & links_b).total(),
        groups=tuple(
            sorted(g for g in rings_a.keys() | rings_b.keys() if rings_a.get(g) != rings_b.get(g))
        ),
        routes_changed=sum(
            sorted(map(repr, routes_a.get(p, ()))) != sorted(map(repr, routes_b.get(p, ())))
            for p in pairs
        ),
        routes_in_all=len(pairs),
        prediction=_changed_prediction(a, b),
    )


def _ends(link: Link) -> tuple[int, int]:
    return link.source, link.target


def _changed_fields(a: Plan, b: Plan) -> tuple[Changed, ...]:
    names = ("model", "batch_size", "seed", "mode", "strategy_space", "micro_batches")
    found = [(name, getattr(a, name), getattr(b, name)) for name in names]
    if a.layout is not None and b.layout is not None:
        for name in ("layout", "trainer"):
            x, y = vars(getattr(a, name)), vars(getattr(b, name))
            found += [(f"{name}.{field}", x[field], y[field]) for field in x]
    else:
        found.append(("layout", _text(a.layout), _text(b.layout)))
    found += [
        (f"cluster.{field.name}", getattr(a.cluster, field.name), getattr(b.cluster, field.name))
        for field in fields(a.cluster)
    ]
    return tuple(Changed(name, x, y) for name, x, y in found if x != y)


def _text(layout: Layout | None) -> str | None:
    return None if layout is None else str(layout)


def _moved(a: Plan, b: Plan) -> tuple[Moved, ...]:
    placed_a = {placement.operator: placement for placement in a.strategy}
    placed_b = {placement.operator: placement for placement in b.strategy}
    names = dict.fromkeys((*placed_a, *placed_b))
    return tuple(
        Moved(name, placed_a.get(name), placed_b.get(name))
        for name in names
        if placed_a.get(name) != placed_b.get(name)
    )


def _changed_prediction(a: Plan, b: Plan) -> tuple[Changed, ...]:
    names = ("iteration_s", "compute_s", "single_ring_s", "ideal_switch_s")
    found = [(name, getattr(a.prediction, name), getattr(b.prediction, name)) for name in names]
    busiest_a, busiest_b = (max(p.prediction.link_bytes, default=0) for p in (a, b))
    found.append(("busiest_link_bytes", busiest_a, busiest_b))
    return tuple(Changed(name, x, y) for name, x, y in found if x != y)
