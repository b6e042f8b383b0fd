"""Losses, gradients and parameters of a split model equal those of one process."""

from __future__ import annotations

import functools
import random
from collections import Counter
from contextlib import contextmanager
from itertools import permutations
from typing import TYPE_CHECKING, Any

import parallel_models
import pytest
import torch
import torch.distributed as dist
from support.backend.ranks import make_plan, run_bare_ranks, run_ranks, values
from support.refusals import named, refused
from torch import nn
from torch.distributed import checkpoint

import torch_topoopt
from torch_topoopt.parallel import Program, StrategyError, checked_program, parallelize
from torch_topoopt.parallel.api import placed
from torch_topoopt.parallel.module import ParallelModule
from torch_topoopt.parallel.transfers import Incoming, Messages
from torch_topoopt.plan import Placement
from torch_topoopt.profile.profiling import ProfileError, profile
from torch_topoopt.search.traffic import demand

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

RANKS, SHARE, STEPS, RATE = 4, 2, 3, 0.5


def strategies(name: str, count: int) -> list[tuple[Placement, ...]]:
    """`count` random ones that can be executed, the same in every process, and one more."""
    program = Program.of(parallel_models.build(name), parallel_models.batch(name, 8))
    rng = random.Random(name)
    sets = [servers for k in (1, 2, 4) for servers in list(permutations(range(RANKS), k))[:12]]
    ways: list[dict[str, int]] = [{}, {"columns": 2}, {"columns": 4}, {"rows": 2}, {"rows": 4}]

    def one(operator: str) -> Placement:
        for way in rng.sample(ways, len(ways)):
            parts = max(way.values(), default=1)
            able = [Placement(operator, s, **way) for s in sets if len(s) % parts == 0]
            able = [placement for placement in able if not program.why_not_placed(placement, RANKS)]
            if able:
                return rng.choice(able)
        raise AssertionError(operator)

    def alike(operator: str) -> Placement:
        """On two ranks, so that what reads the same tensor does so alike; else on all."""
        placement = Placement(operator, (2, 0))
        able = not program.why_not_placed(placement, RANKS)
        return placement if able else Placement(operator, tuple(range(RANKS)))

    made = [tuple(map(one, program.operators)) for _ in range(count)]
    return [*made, tuple(map(alike, program.operators))]


def alone(name: str) -> tuple[list[float], dict[str, torch.Tensor]]:
    """Losses and parameters of steps of SGD in one process.

    Where samples are mixed, the shares are computed one after the other.
    """
    model = parallel_models.build(name)
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    losses = []
    for step in range(STEPS):
        whole = parallel_models.batch(name, RANKS * SHARE, step)
        shares = zip(*(tensor.split(SHARE) for tensor in whole), strict=True)
        loss = sum(parallel_models.loss(model(*share)) for share in shares) / RANKS
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses, model.state_dict()


@contextmanager
def counted_messages() -> Iterator[Counter[int]]:
    """Bytes that this rank sends to each other one."""
    sent: Counter[int] = Counter()
    original = dist.isend

    def isend(tensor: torch.Tensor, to: int, **kwargs: Any) -> Any:
        sent[to] += tensor.nbytes
        return original(tensor, to, **kwargs)

    dist.isend = isend
    try:
        yield sent
    finally:
        dist.isend = original


def sent_before_waiting(model: ParallelModule, share: list[torch.Tensor]) -> int:
    """The number of tensors this rank's forward pass sends before it waits for the first."""
    events = []
    post, wait = Messages.post, Incoming.wait
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Messages, "post", lambda *a: events.append("post") or post(*a))
        patch.setattr(Incoming, "wait", lambda *a: events.append("wait") or wait(*a))
        model(*share)
    return events.index("wait")


def train(name: str, strategy: tuple[Placement, ...], rank: int) -> tuple[Any, ...]:
    """This rank's losses, the parameters that it is left with, what it sent to each other, and the
    whole state."""
    model = parallelize(
        parallel_models.build(name), parallel_models.batch(name, 4), strategy=strategy
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    losses = []
    with counted_messages() as sent:
        for step in range(STEPS):
            whole = parallel_models.batch(name, RANKS * SHARE, step)
            share = [tensor.split(SHARE)[rank] for tensor in whole]
            loss = parallel_models.loss(model(*share))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(float(loss.detach()))
    with torch.no_grad():
        model.eval()
        parallel_models.loss(model(*share))
    left = {
        k: v.detach().numpy().copy()
        for k, v in model.module.named_parameters(remove_duplicate=False)
    }
    state = model.state_dict()
    whole_state = {name: value.numpy().copy() for name, value in state.items()}
    changed = {name: value + 1 for name, value in state.items()}
    model.load_state_dict(changed)
    for name, value in model.state_dict().items():
        assert torch.equal(value, changed[name]), name
    return losses, left, dict(sent), whole_state


def train_all(backend: str, count: int, rank: int, world: int) -> list[Any]:
    dist.init_process_group(backend)
    done = [
        train(name, strategy, rank)
        for name in parallel_models.MODELS
        for strategy in strategies(name, count)
    ]
    dist.destroy_process_group()
    return done


@pytest.mark.parametrize("backend", ["topoopt", pytest.param("gloo", marks=pytest.mark.exhaustive)])
def test_a_split_model_trains_as_it_does_alone(backend: str, tmp_path: Path) -> None:
    count = 1 if backend == "topoopt" else 6
    function = functools.partial(train_all, backend, count)
    if backend == "topoopt":
        done = values(run_ranks(make_plan(RANKS, 2), tmp_path, function))
    else:
        done = values(run_bare_ranks(RANKS, function))
    cases = [(name, s) for name in parallel_models.MODELS for s in strategies(name, count)]
    for case, (name, strategy) in enumerate(cases):
        losses, parameters = alone(name)
        of_ranks = [rank[case] for rank in done]
        for step in range(STEPS):
            mean = sum(of_rank[0][step] for of_rank in of_ranks) / RANKS
            assert mean == pytest.approx(losses[step], rel=1e-9), (name, strategy, step)
        batch = parallel_models.batch(name, RANKS * SHARE)
        graph = profile(parallel_models.build(name), batch, name=name, boundary=True)
        asked = {(p.source, p.target): p.size_bytes for p in demand(graph, strategy, RANKS).pairs}
        sent = {(r, to): b / STEPS for r, done in enumerate(of_ranks) for to, b in done[2].items()}
        assert sent == pytest.approx(asked), (name, strategy)
        for key, whole in parameters.items():
            kept = [left[key] for _, left, _, _ in of_ranks if key in left]
            assert kept, f"{key} lives nowhere"
            for value in kept:
                of_part(whole, torch.from_numpy(value))
        for *_, state in of_ranks:
            assert list(state) == list(parameters)
            for key, whole in parameters.items():
                torch.testing.assert_close(
                    torch.from_numpy(state[key]), whole, rtol=1e-9, atol=1e-12
                )
        assert any(p.servers != tuple(range(RANKS)) for p in strategy)


def of_part(whole: torch.Tensor, part: torch.Tensor) -> None:
    """Asserts that `part` is one of the equal parts of `whole`, along one dimension."""
    choices = [whole]
    for dimension, (size, of) in enumerate(zip(part.shape, whole.shape, strict=True)):
        if size < of:
            choices = [c for choice in choices for c in choice.split(size, dimension)]
    assert any(torch.allclose(part, choice, rtol=1e-9, atol=1e-12) for choice in choices)


def two_models(folder: str, rank: int, world: int) -> Any:
    dist.init_process_group("gloo")
    name = "tables"
    program = Program.of(parallel_models.build(name), parallel_models.batch(name, 4))
    strategy = tuple(
        Placement(o, (i % world,) if o.startswith("tables") else tuple(range(world)))
        for i, o in enumerate(program.operators)
    )
    model = parallelize(
        parallel_models.build(name), parallel_models.batch(name, 4), strategy=strategy
    )
    assert isinstance(model, ParallelModule)
    share = [t.split(SHARE)[rank] for t in parallel_models.batch(name, world * SHARE)]
    with model.no_sync():
        parallel_models.loss(model(*share)).backward()
    parallel_models.loss(model(*share)).backward()
    twice = {k: p.grad.clone() for k, p in model.module.named_parameters()}
    model.zero_grad()
    for _ in range(2):
        parallel_models.loss(model(*share)).backward()
    for key, parameter in model.module.named_parameters():
        torch.testing.assert_close(parameter.grad, twice[key])
    # Every table's bags, so that no rank waits for another that waits at an earlier table.
    assert sent_before_waiting(model, share) == 3
    kept = sorted(k for k, _ in model.module.named_parameters() if k.startswith("tables"))
    state = model.state_dict()
    checkpoint.save(state, checkpoint_id=folder)
    refused = []
    for wrong_state in (
        {**state, "tables.1.weight": torch.zeros(3, 10)},
        {k: v for k, v in state.items() if k != "top.0.bias"},
        {**state, "other": torch.zeros(1)},
    ):
        try:
            model.load_state_dict(wrong_state)
        except RuntimeError as error:
            refused.append(str(error))
    left_out = model.load_state_dict({"other": torch.zeros(1)}, strict=False)
    assert left_out.unexpected_keys == ["other"]
    assert left_out.missing_keys == list(state)
    wrong = ""
    try:
        model(share[0][:, :3], share[1])
    except Exception as error:  # of PyTorch, or ours
        wrong = type(error).__name__
    dist.destroy_process_group()
    return kept, wrong, refused, {name: value.numpy() for name, value in state.items()}


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_gradients_add_up_and_tables_live_on_their_server_only(tmp_path: Path) -> None:
    done = values(run_bare_ranks(2, functools.partial(two_models, str(tmp_path))))
    kept = [set(of_rank[0]) for of_rank in done]
    assert kept[0] & kept[1] == set()
    assert len(kept[0] | kept[1]) == 3
    for _, wrong, errors, saved in done:
        assert wrong
        assert errors == [
            "topoopt: load_state_dict: 'tables.1.weight' has shape (3, 10), not (10, 3)",
            "topoopt: load_state_dict: 'top.0.bias' is missing",
            "topoopt: load_state_dict: 'other' is not of this module",
        ]
        alone = parallel_models.build("tables")
        state = {name: value + 1 for name, value in alone.state_dict().items()}
        checkpoint.load(state, checkpoint_id=str(tmp_path), no_dist=True)
        alone.load_state_dict(state)
        for name, value in alone.state_dict().items():
            assert torch.equal(value, torch.from_numpy(saved[name]))


@pytest.mark.parametrize(
    ("strategy", "tokens"),
    [
        ([Placement("tables.0", (0,))], ("bottom.0", "placed")),
        ([Placement("tables.9", (0,))], ("operator",)),
        ({"tables.0": (1, 1)}, ("tables.0", "[1, 1]", "0..3")),
        ({"tables.0": (0, 4)}, ("tables.0", "[0, 4]")),
        (
            {"stack": (0, 1, 2)},
            ("stack", "[0, 1, 2]", 3),
        ),
        ({"output": (0,)}, ("output", "[0]")),
    ],
)
def test_a_strategy_that_cannot_be_executed_is_named(
    strategy: Any, tokens: tuple[object, ...]
) -> None:
    program = Program.of(parallel_models.build("tables"), parallel_models.batch("tables", 4))
    if isinstance(strategy, dict):
        strategy = [
            Placement(name, strategy.get(name, tuple(range(4)))) for name in program.operators
        ]
    with refused(StrategyError, *tokens):
        placed(program, strategy, 4)


@pytest.mark.parametrize(
    ("placement", "why"),
    [
        (Placement("words", (0, 1, 2), rows=3), ""),
        (Placement("words", (0, 1, 2, 3), columns=2), ""),
        (Placement("tanh", (0, 1), columns=2), ""),
        (Placement("widen", (3, 1), columns=2), ""),
        (Placement("widen", (0, 1, 2), columns=3), "16 columns cannot be cut into 3 equal parts"),
        (Placement("head", (0, 1), rows=2), "shares a parameter with 'head#2'"),
        (
            Placement("mean", (0, 1), attribute=2),
            "it is sequence or context parallel, which",
        ),
        (Placement("mean", (0, 1), experts=2), "it is expert parallel, which can be planned but"),
        (Placement("sum#2", (0, 1), columns=2), "splits of its columns can be planned but not ex"),
    ],
)
def test_what_can_be_split_and_why_not(placement: Placement, why: str) -> None:
    program = Program.of(parallel_models.build("split"), parallel_models.batch("split", 4))
    if not why:
        assert program.why_not_placed(placement, RANKS) == ""
    else:
        assert why in program.why_not_placed(placement, RANKS)


def test_columns_that_the_model_looks_at_stay_together() -> None:
    program = Program.of(parallel_models.build("attention"), parallel_models.batch("attention", 4))
    assert program.cuts["mix"]["columns"].size == 24
    why = program.why_not_placed(Placement("mix", (0, 1), columns=2), RANKS)
    assert why == "the model takes views of its result, which need all columns"
    assert program.why_not_placed(Placement("mix", (0, 1), rows=2), RANKS) == ""


def test_what_cannot_be_spread_says_why() -> None:
    attention = Program.of(
        parallel_models.build("attention"), parallel_models.batch("attention", 4)
    )

    def why_not(program: Program, operator: str, servers: tuple[int, ...]) -> str:
        return program.why_not_placed(Placement(operator, servers), 4)

    assert why_not(attention, "embed", (0,)) == "it shares a parameter with 'head'"
    assert why_not(attention, "embed", (0, 1, 2, 3)) == ""
    assert why_not(attention, "norm", (1,)) == ""
    in_place = Program.of(parallel_models.build("in-place"), parallel_models.batch("in-place", 4))
    assert why_not(in_place, "relu", (0,)) == "it changes a tensor of 'first' in place"
    assert "mean" in why_not(in_place, "sub", (0,))


def test_samples_that_depend_on_each_other_stay_on_their_server() -> None:
    name = "as they are"
    program = Program.of(parallel_models.build(name), parallel_models.batch(name, 4))
    assert program.exporting
    dependent = {"argsort", "getitem", "repeat", "index_copy"}
    for operator in dependent:
        assert named(program.pinned[operator], "depend", "samples")
    assert named(program.pinned["tanh#2"], "views", "mix")
    assert program.leaves == ("embed", "angles", "query", "out", "drop", "same", "experts")
    assert not dependent & program.modules.keys()
    assert [step.name for step in program.steps if step.name == "float"], "it is on a CPU"


def test_what_is_computed_again_stays_on_all_servers() -> None:
    program = Program.of(
        parallel_models.build("recomputed"), parallel_models.batch("recomputed", 4)
    )
    free = [o for o in program.operators if o not in program.pinned]
    assert free == ["first", "head"]


class Impatient(nn.Module):
    """Calls another function from its fourth call on."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return torch.tanh(self.inner(x)) if self.calls < 4 else torch.relu(self.inner(x))


def test_a_model_whose_calls_change_is_refused_before_it_runs() -> None:
    with refused(ProfileError, "Impatient", "1", "relu", "tanh"):
        checked_program(lambda: nn.Sequential(nn.Linear(4, 4), Impatient()), torch.zeros(4, 4))


def test_parallelize_needs_a_process_group_and_a_plan() -> None:
    model, batch = parallel_models.build("tables"), parallel_models.batch("tables", 4)
    with refused(RuntimeError, "init_process_group", "group"):
        torch_topoopt.parallelize(model, batch)


def without_a_plan(rank: int, world: int) -> str:
    dist.init_process_group("gloo")
    try:
        parallelize(parallel_models.build("tables"), parallel_models.batch("tables", 4))
    except RuntimeError as error:
        return str(error)
    finally:
        dist.destroy_process_group()
    return ""


def test_without_a_plan_it_says_how_to_get_one() -> None:
    (said,) = values(run_bare_ranks(1, without_a_plan))
    assert named(said, "topoopt run", "strategy=")
