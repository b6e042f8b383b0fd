"""The split of one operator, and its servers."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Literal, NamedTuple

from torch_topoopt.plan.codec import DocumentError
from torch_topoopt.plan.server_sets import check_servers

ParameterKind = Literal["columns", "rows", "experts"]
PARAMETER_KINDS: tuple[ParameterKind, ...] = ("columns", "rows", "experts")
PARALLELISM = {  # the common name of a split along this dimension
    "columns": "column parallel",
    "rows": "row parallel",
    "experts": "expert parallel",
    "attribute": "sequence or context parallel",
}


class Degrees(NamedTuple):
    """The number of parts of an operator along each dimension; `kind` is the split of the
    parameters, None if they are whole."""

    sample: int = 1
    kind: ParameterKind | None = None
    parameter: int = 1
    attribute: int = 1

    def __str__(self) -> str:
        """Such as "samples in 4, columns in 2"; "whole" for one part of everything."""
        parts = (
            ("samples", self.sample),
            (self.kind, self.parameter),
            ("attribute", self.attribute),
        )
        return ", ".join(f"{name} in {count}" for name, count in parts if count > 1) or "whole"


@dataclass(frozen=True)
class Placement:
    """The servers that share one operator, each with one shard (one server: the whole operator).

    At most one of `columns`, `rows` and `experts` is above 1: the number of parts of the
    parameters. `attribute` is the number of parts of a sample's positions (in a sequence or image).
    The remaining servers share the samples. The shard of sample part i, parameter part j and
    attribute part k is on `servers[(i * parameter + j) * attribute + k]`.
    """

    LEFT_OUT: ClassVar[frozenset[str]] = frozenset({"columns", "rows", "experts", "attribute"})

    operator: str
    servers: tuple[int, ...]
    columns: int = 1
    rows: int = 1
    experts: int = 1
    attribute: int = 1

    @property
    def parameter(self) -> int:
        """The number of parts of the parameters."""
        return max(self.columns, self.rows, self.experts)

    @property
    def parameter_kind(self) -> ParameterKind | None:
        """The split of the parameters; None if every server holds all of them."""
        for kind in PARAMETER_KINDS:
            if getattr(self, kind) > 1:
                return kind
        return None

    @property
    def sample(self) -> int:
        """The number of parts of the samples."""
        return len(self.servers) // (self.parameter * self.attribute)

    @cached_property
    def degrees(self) -> Degrees:
        return Degrees(self.sample, self.parameter_kind, self.parameter, self.attribute)

    def on(self, servers: tuple[int, ...]) -> Placement:
        """The same parts on other servers, of the same number."""
        made = Placement(
            self.operator, servers, self.columns, self.rows, self.experts, self.attribute
        )
        vars(made)["degrees"] = self.degrees  # cached: searches try ten thousands of orders
        return made

    @classmethod
    def of(cls, operator: str, servers: tuple[int, ...], degrees: Degrees) -> Placement:
        """The placement of these degrees; the number of servers determines the sample degree."""
        parts = {degrees.kind: degrees.parameter} if degrees.kind else {}
        return cls(operator, servers, attribute=degrees.attribute, **parts)


def validate_placement(where: str, placement: Placement, servers: int) -> Placement:
    """Returns `placement`, or raises DocumentError: unknown or repeated servers, degrees below 1,
    two ways of splitting the parameters, or servers that are no multiple of the parts."""
    check_servers(f"{where}.servers", placement.servers, servers)
    for name in (*PARAMETER_KINDS, "attribute"):
        if getattr(placement, name) < 1:
            raise DocumentError(f"{where}.{name}: {getattr(placement, name)} is not at least 1")
    split = [kind for kind in PARAMETER_KINDS if getattr(placement, kind) > 1]
    if len(split) > 1:
        raise DocumentError(
            f"{where}: {' and '.join(split)} are both above 1; parameters are split one way"
        )
    parts = placement.parameter * placement.attribute
    if len(placement.servers) % parts:
        raise DocumentError(
            f"{where}.servers: {len(placement.servers)} servers are no multiple of {parts} parts "
            f"({placement.parameter} of the parameters x {placement.attribute} of the positions)"
        )
    return placement
