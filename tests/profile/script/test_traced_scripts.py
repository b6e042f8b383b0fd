"""Unmodified scripts under the fake process group: their collectives, by closed forms."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
import training_scripts

from torch_topoopt.plan import GroupDemand, PairDemand
from torch_topoopt.profile.script import demand_of
from torch_topoopt.profile.script.runner import (
    TraceLimits,
    TrainingScript,
    World,
    job,
    repeated_iterations,
    run_jobs,
    trace_of_answers,
)

if TYPE_CHECKING:
    from pathlib import Path

    from torch_topoopt.profile.script import CommunicationTrace

Call = dict[str, Any]
FLOAT = 4  # bytes

# (script, rank, world size); one process imports PyTorch for all of them
RANKS = (
    ("DDP", 1, 4),
    ("FSDP2", 0, 4),
    ("TENSOR_PARALLEL", 2, 4),
    *(("PIPELINE", rank, 3) for rank in range(3)),
    *(("PIPELINE_SHAPES", rank, 2) for rank in range(2)),
    ("EXPERTS", 3, 4),
    *(("UNEVEN_EXPERTS", rank, 3) for rank in range(3)),
    *(("OBJECTS", rank, 3) for rank in range(3)),
    *(("CROSSED", rank, 2) for rank in range(2)),
    *(("LOCAL_SGD", rank, 4) for rank in range(4)),
    *(("POWER_SGD", rank, 2) for rank in range(2)),
    *(("ZERO_JOIN", rank, 2) for rank in range(2)),
    ("OPERATIONS", 1, 3),
    ("STUBBORN", 0, 2),
    *(
        (name, 0, 2)
        for name in ("LATE_FAILURE", "FAILING", "EXITING", "SHORT", "KILLED", "CONNECTING")
    ),
    ("OTHER_WORLD", 0, 2),
    ("ENDLESS", 0, 2),
    ("ACCUMULATING", 0, 4),
    *(("OWN_STORE", rank, 2) for rank in range(2)),
    *(("REPLICAS", rank, 6) for rank in (0, 3)),
    ("UNEVEN_REPLICAS", 0, 4),
    *((name, 0, 2) for name in ("WAITING_FOR_A_RANK", "ASSERTING", "ASSERTING_IN_A_LIBRARY")),
    *((name, 0, 2) for name in ("NO_OPTIMIZER", "NO_GROUP", "GREEDY")),
)
ARGUMENTS = {"ACCUMULATING": ("--batches", "3")}
LIMITS = {
    "ENDLESS": TraceLimits(1.0, time_option="--time-limit"),
    "GREEDY": TraceLimits(100.0, memory_bytes=500_000_000),
}
PATIENT = TraceLimits(100.0)


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, int], dict[str, Any]]:
    folder: Path = tmp_path_factory.mktemp("scripts")
    jobs = []
    for name, rank, world_size in RANKS:
        script = folder / f"{name.lower()}.py"
        script.write_text(getattr(training_scripts, name))
        run = TrainingScript(str(script), ARGUMENTS.get(name, ()))
        jobs.append(job(run, World(world_size), rank, limits=LIMITS.get(name, PATIENT)))
    (folder / "torchft").mkdir()
    (folder / "torchft" / "__init__.py").touch()
    (folder / "package").mkdir()
    (folder / "package" / "__init__.py").touch()
    (folder / "package" / "train.py").write_text(training_scripts.DDP)
    (folder / "package" / "library.py").write_text("def check(one):\n    assert one == 2\n")
    monkeypatch = pytest.MonkeyPatch()
    monkeypatch.chdir(folder)
    jobs.append(job(TrainingScript("package.train", module=True), World(4), 0, limits=PATIENT))
    found = run_jobs(jobs, stop_at_error=False)
    monkeypatch.undo()
    names = [*((name, rank) for name, rank, _ in RANKS), ("MODULE", 0)]
    return dict(zip(names, found, strict=True))


Answers = dict[tuple[str, int], dict[str, Any]]


def _last(answers: Answers, name: str, rank: int) -> list[Call]:
    """The calls of the second of two iterations."""
    answer = answers[name, rank]
    assert "error" not in answer, answer
    assert {call["rank"] for call in answer["calls"]} <= {rank}
    return [call for call in answer["calls"] if call["iteration"] == 1]


def _kinds(calls: list[Call]) -> Counter[tuple[str, str, int]]:
    return Counter((c["phase"], c["operation"], c["size_bytes"]) for c in calls)


def test_ddp_reduces_its_parameters_in_buckets_and_sets_up_once(answers: Answers) -> None:
    calls = _last(answers, "DDP", 1)
    parameter_bytes = FLOAT * (2 * (64 * 64 + 64) + 64 * 8 + 8)
    assert {(c["operation"], c["phase"]) for c in calls} == {("AllReduce", "backward")}
    assert sum(c["size_bytes"] for c in calls) == parameter_bytes
    assert len(calls) > 1
    assert all(c["group"] == [0, 1, 2, 3] for c in calls)
    first = [c for c in answers["DDP", 1]["calls"] if c["iteration"] == 0]
    reduced = [c for c in first if c["phase"] == "backward"]
    assert sum(c["size_bytes"] for c in reduced) == parameter_bytes
    assert "Broadcast" in {c["operation"] for c in first if c["phase"] == "setup"}


def test_a_module_is_run_as_after_python_m(answers: Answers) -> None:
    assert _kinds(_last(answers, "MODULE", 0)) == _kinds(_last(answers, "DDP", 1))


def test_gradients_that_are_summed_up_are_reduced_once_per_step(answers: Answers) -> None:
    calls = _last(answers, "ACCUMULATING", 0)
    assert _kinds(calls) == {("backward", "AllReduce", FLOAT * (16 * 16 + 16)): 1}


@pytest.mark.parametrize("rank", [0, 1])
def test_a_store_of_the_script_s_own_waits_for_nobody(answers: Answers, rank: int) -> None:
    calls = _last(answers, "OWN_STORE", rank)
    assert _kinds(calls) == {("backward", "AllReduce", FLOAT * (16 * 16 + 16)): 1}


@pytest.mark.parametrize(("rank", "members"), [(0, [0, 2, 4]), (3, [1, 3, 5])])
def test_a_quorum_has_all_replicas_and_a_group_one_rank_of_each(
    answers: Answers, rank: int, members: list[int]
) -> None:
    (call,) = _last(answers, "REPLICAS", rank)
    assert (call["operation"], call["size_bytes"], call["group"]) == ("AllReduce", 40, members)


def test_a_key_that_another_rank_would_set_is_missed_at_once(answers: Answers) -> None:
    assert answers["WAITING_FOR_A_RANK", 0] == {"error": "DistStoreError: Wait timeout (line 4)"}


def test_fsdp2_gathers_and_scatters_every_layer(answers: Answers) -> None:
    layer_bytes = FLOAT * (32 * 32 + 32)
    assert _kinds(_last(answers, "FSDP2", 0)) == {
        ("forward", "AllGather", layer_bytes): 3,
        ("backward", "AllGather", layer_bytes): 3,
        ("backward", "ReduceScatter", layer_bytes): 3,
    }


def test_tensor_parallel_layers_reduce_activations_and_their_gradients(answers: Answers) -> None:
    calls = _last(answers, "TENSOR_PARALLEL", 2)
    assert _kinds(calls) == {
        ("forward", "AllReduce", FLOAT * 8 * 32): 1,
        ("backward", "AllReduce", FLOAT * 8 * 16): 1,
    }
    assert all(c["group"] == [2, 3] for c in calls)


def test_pipeline_stages_send_microbatches_on_and_gradients_back(answers: Answers) -> None:
    microbatch = FLOAT * 2 * 16
    for rank in range(3):
        sent = Counter(
            (c["operation"], c["peer"], c["size_bytes"]) for c in _last(answers, "PIPELINE", rank)
        )
        neighbours = [peer for peer in (rank - 1, rank + 1) if 0 <= peer < 3]
        assert sent == {
            (operation, peer, microbatch): 4
            for peer in neighbours
            for operation in ("Send", "Recv")
        }


def test_experts_exchange_tokens_twice_each_way(answers: Answers) -> None:
    calls = _last(answers, "EXPERTS", 3)
    assert _kinds(calls) == {
        ("forward", "AllToAll", FLOAT * 16 * 16): 2,
        ("backward", "AllToAll", FLOAT * 16 * 16): 2,
    }
    assert all(c["part_bytes"] == [FLOAT * 4 * 16] * 4 for c in calls)


def test_stages_send_each_other_the_shapes_of_their_inputs(answers: Answers) -> None:
    """Two stages on each rank, each of which waits for a stage of the other rank."""
    microbatch = FLOAT * 2 * 16
    for rank in range(2):
        sent = Counter(
            (c["operation"], c["size_bytes"]) for c in _last(answers, "PIPELINE_SHAPES", rank)
        )
        # of the three borders between stages, each rank sends forward over two, or back over one
        assert sent == {("Send", microbatch): 3 * 4, ("Recv", microbatch): 3 * 4}


def test_experts_exchange_as_many_tokens_as_they_have_told_each_other(answers: Answers) -> None:
    demand, _ = demand_of(_trace(answers, "UNEVEN_EXPERTS"))
    token = FLOAT * 16
    counts = {(source, target): source + 1 if target == 0 else 1
              for source in range(3) for target in range(3)}  # fmt: skip
    assert list(demand.pairs) == [
        PairDemand(a, b, 8 + token * (counts[a, b] + counts[b, a]))
        for a, b in sorted(counts)
        if a != b
    ]


@pytest.mark.parametrize("rank", [0, 1, 2])
def test_objects_come_from_their_root(answers: Answers, rank: int) -> None:
    assert _kinds(_last(answers, "OBJECTS", rank)) == {("backward", "AllReduce", FLOAT * 6): 1}


def test_ranks_that_wait_for_each_other_get_on_without_their_messages(answers: Answers) -> None:
    for rank in range(2):
        operations = [call["operation"] for call in _last(answers, "CROSSED", rank)]
        assert operations == ["Recv", "Send"]


def test_the_period_of_model_averaging_is_found_after_its_warm_up(answers: Answers) -> None:
    trace = _trace(answers, "LOCAL_SGD")
    assert (trace.period, trace.iterations) == (3, 4)
    model = FLOAT * (16 * 16 + 16)
    assert demand_of(trace)[0].groups == (
        GroupDemand((0, 1), model),
        GroupDemand((0, 1, 2, 3), -(-model // 3)),
        GroupDemand((2, 3), model),
    )


def test_compressed_gradients_are_planned_for_where_they_begin_later(answers: Answers) -> None:
    trace = _trace(answers, "POWER_SGD")
    assert (trace.period, trace.iterations) == (1, 2)
    assert demand_of(trace)[0].groups == (GroupDemand((0, 1), 2 * FLOAT * 64),)


def test_an_optimizer_with_shards_broadcasts_them_under_join(answers: Answers) -> None:
    for rank in range(2):
        shards = {
            (call["size_bytes"], call["peer"])
            for call in _last(answers, "ZERO_JOIN", rank)
            if call["operation"] == "Broadcast"
        }
        assert shards == {(FLOAT * 16 * 16, 0), (FLOAT * 16, 1)}


def _trace(answers: Answers, name: str) -> CommunicationTrace:
    found = {rank: answers[name, rank] for other, rank, _ in RANKS if other == name}
    return trace_of_answers(TrainingScript(name), World(len(found)), found)


@pytest.mark.parametrize(
    ("sizes", "repeated"),
    [
        ("abb", 1),
        ("abcbcbc", 2),
        ("awwllgllgll", 3),
        ("aaaaaaaaab", 1),
        ("aaaaaaaaabb", 1),
        ("ab", 1),
        ("abc", 1),
        ("abcdefg", 6),
    ],
)
def test_the_last_iterations_that_repeat_are_found(sizes: str, repeated: int) -> None:
    calls = [{"iteration": i, "size_bytes": size} for i, size in enumerate(sizes)]
    assert repeated_iterations(calls, len(sizes)) == repeated


def test_every_operation_of_torch_distributed_is_read(answers: Answers) -> None:
    calls = _last(answers, "OPERATIONS", 1)
    part, everything = 10 * FLOAT, 30 * FLOAT
    assert [(c["operation"], c["size_bytes"], c["peer"]) for c in calls] == [
        ("AllReduce", part, None),
        ("AllGather", everything, None),
        ("AllGather", everything, None),
        ("ReduceScatter", everything, None),
        ("ReduceScatter", everything, None),
        ("Broadcast", part, 2),
        ("Reduce", part, 0),
        ("Gather", part, 0),
        ("Scatter", part, 0),
        ("AllToAll", 3 * FLOAT, None),
        ("AllToAll", 6 * FLOAT, None),
        ("Send", part, 0),
        ("Recv", part, 2),
        ("Barrier", 0, None),
    ]
    assert calls[5]["group"] == [1, 2]
    assert calls[9]["part_bytes"] == [0, FLOAT, 2 * FLOAT]
    assert calls[10]["part_bytes"] == [FLOAT, 2 * FLOAT, 3 * FLOAT]
    assert len(answers["OPERATIONS", 1]["calls"]) == 2 * len(calls)


def test_what_fails_after_the_required_iterations_does_not_matter(answers: Answers) -> None:
    assert answers["LATE_FAILURE", 0] == {"iterations": 3, "calls": []}


def test_a_script_that_catches_everything_is_ended(answers: Answers) -> None:
    assert _kinds(_last(answers, "STUBBORN", 0)) == {("backward", "AllReduce", FLOAT * 6): 1}


def test_an_error_without_words_names_the_line_that_raised_it(answers: Answers) -> None:
    error = answers["ASSERTING_IN_A_LIBRARY", 0]["error"]
    assert error.startswith("AssertionError: assert one == 2 in ")
    assert error.endswith("/package/library.py:2 (line 3)")


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("FAILING", "ValueError: no such data (line 3)"),
        ("EXITING", "it called sys.exit(3) after 0 optimizer steps; 2 iterations are needed"),
        ("ASSERTING", "AssertionError: assert torch.cuda is None (line 3)"),
        ("SHORT", "it ended after 1 optimizer step; 2 iterations are needed"),
        (
            "ENDLESS",
            "not 2 iterations within 1 s (one ends when every optimizer has stepped); give it less "
            "work, or more --time-limit",
        ),
        ("NO_OPTIMIZER", "it ended after 0 optimizer steps; 2 iterations are needed"),
        ("NO_GROUP", "it ended after 0 optimizer steps; 2 iterations are needed"),
        ("GREEDY", "more than 0.5 GB of memory before 2 iterations"),
        ("KILLED", "its process ended with code -9: out of memory"),
        (
            "CONNECTING",
            "PermissionError: there is no network while a script is profiled (line 3)",
        ),
        (
            "UNEVEN_REPLICAS",
            "ValueError: new_process_group: rank=1, world_size=3: this profile has rank 0 of 4, "
            "and replicas of as many ranks each (line 15)",
        ),
        (
            "OTHER_WORLD",
            "ValueError: init_process_group: world_size=64, but this profile has world_size 2; "
            "take it from the variable WORLD_SIZE (line 3)",
        ),
    ],
)
def test_what_cannot_be_profiled_is_said_in_one_line(
    answers: Answers, name: str, error: str
) -> None:
    assert answers[name, 0] == {"error": error}
