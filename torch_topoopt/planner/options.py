"""The options of `alternation.plan`."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, get_args

from torch_topoopt.plan import POLICIES, SpaceName
from torch_topoopt.plan.layout import OffloadChoice, Precision, SoftwareName
from torch_topoopt.search.defaults import default_evaluations, default_rounds
from torch_topoopt.search.optimizers import optimizer
from torch_topoopt.search.strategy_space import DIMENSIONS
from torch_topoopt.search.two_levels import SearchOptions
from torch_topoopt.user_functions import UserFunction

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch_topoopt.op_graph import OpGraph, SplitDimension
    from torch_topoopt.plan import Network, Policy
    from torch_topoopt.plan.layout import Layout
    from torch_topoopt.search.strategies import Executable, Strategy

Ablation = Literal["both", "search-only", "topology-only"]
MicroBatches = int | tuple[int, ...] | Literal["auto"]
MOST_AUTOMATIC = 32  # micro-batches
CONVERGED = 1e-3  # a round that gains less than this fraction is the last
ABLATIONS: tuple[Ablation, ...] = get_args(Ablation)


@dataclass(frozen=True)
class PlanningOptions:
    """Checked by `validate`.

    At most `rounds` rounds of `evaluations` proposals each, until a round gains less than 0.1 %, on
    few servers two in a row. The defaults for None are in `search.defaults`.

    `strategy_space`: with "layouts" all blocks of a model are divided alike (`plan.layout`), or as
    `layout` says; with "all" a layout wins where the flow simulator, in the terms of strategies,
    finds it faster than the strategy of the space "full". Layouts are trained by `software` with
    `optimizer` (default: adamw), which sets the `optimizer_factor` of strategies, too; with a
    `precision`, the OpGraph is of a model in that type, and the parameters have 32 bits. State may
    be on hosts as `offload` says; "auto": if this is a tenth faster, or nothing else fits. With
    "data-parallel" every operator runs on every server and only the network is planned; with
    "samples" operators are split by samples only. With `executable`, only strategies are
    considered all of whose placements it accepts, and with `why_not_layout` only layouts without
    such a reason. The search begins at `strategy` alone, if there is one; `evaluations` 0 only
    prices it.

    `mode` "best" continues from the best pair of mode "paper" for as many rounds again, wired by
    TopologyFinder's mode best for the least predicted iteration: its plan is never worse. These
    rounds price AllReduces on the fastest schedules (`lower_network`), unless `schedules` is false;
    mode paper uses rings. With an existing `network` only the strategy is planned. A user's
    function as mode finds every network, see `find_network`. `routing` is a policy of
    `routing.policies`, or a user's; an existing network keeps its routes.

    With more than one of the `micro_batches` the search also begins at pipelines. Of several
    numbers, or "auto" (1, 2, 4, ... 32, as far as they divide the batch), the first round searches
    each that fits with an equal budget, and continues with the best. The optimizer takes
    `optimizer_factor` bytes of memory per byte of gradients. `search` sets the number of chains and
    where they run.

    Two ablations: "search-only" keeps the network for data parallelism. "topology-only" is the
    paper's naive approach (section 4.1): the strategy is searched on an ideal switch, and the
    network is wired for it, once.
    """

    seed: int = 0
    rounds: int | None = None
    evaluations: int | None = None
    strategy_space: SpaceName | Literal["all"] = "full"
    mode: Literal["paper", "best"] | UserFunction = "paper"
    ablation: Ablation = "both"
    network: Network | None = None
    routing: Policy | UserFunction = "shortest"
    executable: Executable | None = None
    why_not_layout: Callable[[Layout], str] | None = None
    strategy: Strategy | None = None
    micro_batches: MicroBatches = 1
    optimizer_factor: float = 0.0
    optimizer: str | None = None
    software: SoftwareName = "compiled"
    precision: Precision = "own"
    offload: OffloadChoice = "auto"
    layout: Layout | None = None
    schedules: bool = True
    search: SearchOptions = field(default_factory=SearchOptions)

    @property
    def first_mode(self) -> Literal["paper"] | UserFunction:
        """The mode of the first networks; mode best begins at their best pair."""
        return self.mode if isinstance(self.mode, UserFunction) else "paper"

    @property
    def prices_schedules(self) -> bool:
        """Whether the rounds of mode best price AllReduces also on schedules over links."""
        return self.schedules and self.mode == "best" and self.network is None

    @property
    def dimensions(self) -> tuple[SplitDimension, ...]:
        """The splits of the search besides samples, as far as they are executable."""
        return DIMENSIONS if self.strategy_space in ("full", "all") else ()

    def evaluations_of(self, op_graph: OpGraph, servers: int) -> int:
        """The proposals of a round for that job on so many servers."""
        if self.evaluations is None:
            return default_evaluations(servers, len(op_graph.operators))
        return self.evaluations

    def rounds_of(self, servers: int) -> int:
        """The most rounds on so many servers."""
        return default_rounds(servers) if self.rounds is None else self.rounds

    def micro_batch_counts(self, batch_size: int) -> tuple[int, ...]:
        """The numbers of micro-batches to choose from, each once: "auto" is 1, 2, 4, ... 32, as far
        as they divide `batch_size`."""
        if self.micro_batches == "auto":
            counts = [2**i for i in range(MOST_AUTOMATIC.bit_length())]
            return tuple(count for count in counts if batch_size % count == 0)
        given = self.micro_batches
        return tuple(dict.fromkeys((given,) if isinstance(given, int) else given))

    def validate(self) -> None:
        """Raises ValueError for values out of range."""
        if self.seed < 0:
            raise ValueError(f"seed: {self.seed} is negative")
        if self.rounds is not None and self.rounds < 1:
            raise ValueError(f"rounds: must be at least 1 (got {self.rounds})")
        if self.evaluations is not None and self.evaluations < 0:
            raise ValueError(f"evaluations: {self.evaluations} is negative")
        counts = self.micro_batch_counts(1)
        for count in counts:
            if count < 1:
                raise ValueError(f"micro_batches: must be at least 1 (got {count})")
        if not counts:
            raise ValueError("micro_batches: no number to choose from")
        if not 0 <= self.optimizer_factor < math.inf:
            raise ValueError(
                f"optimizer_factor: {self.optimizer_factor} is not a finite number from 0 on"
            )
        if self.optimizer is not None:
            optimizer(self.optimizer)
        if self.layout is not None and self.strategy_space != "layouts":
            raise ValueError(f"layout: is for the space layouts, not {self.strategy_space}")
        if self.strategy is not None and self.strategy_space in ("data-parallel", "layouts"):
            raise ValueError(
                f"strategy: the strategy space {self.strategy_space} has no other than its own"
            )
        choices: tuple[tuple[str, str | UserFunction, tuple[str, ...]], ...] = (
            ("strategy_space", self.strategy_space, (*get_args(SpaceName), "all")),
            ("software", self.software, get_args(SoftwareName)),
            ("precision", self.precision, get_args(Precision)),
            ("offload", self.offload, get_args(OffloadChoice)),
            ("mode", self.mode, ("paper", "best")),
            ("ablation", self.ablation, ABLATIONS),
            ("routing", self.routing, POLICIES),
        )
        for name, value, allowed in choices:
            if value not in allowed and not isinstance(value, UserFunction):
                raise ValueError(
                    f"{name}: {value!r} is not {' or '.join(repr(choice) for choice in allowed)}"
                )


DEFAULT_OPTIONS = PlanningOptions()
