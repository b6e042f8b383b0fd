"""A run folder: `opgraph.json`, `plan.json` and `metrics.jsonl`, read, checked and compared.

`metrics.jsonl` holds one JSON object per line, each with an `event`:

* `run`: `command` (list of words), `servers`, `degree`, `seed`, `time` (ISO 8601); starts a record;
* `stage`: `name` (one of `STAGES`), `seconds`; a stage that ran twice counts with its total;
* `train`: the training script's own log, free-form. The report looks for accuracies, losses,
  `elapsed_s` or `time_s`, `steps` (optimiser steps since the start) and `target_accuracy`;
* `step`: `iteration`, `step_s` (mean since the event before) and `loss` (or null), once a second;
* `link`: the fields of a `LinkTraffic`, measured over the whole run, once per directed link;
* `iterations`: `count` and `seconds`; the time of one of the measured training iterations;
  `start_up_s` of the train stage had passed when the first of all had ended; `other_processors`
  were busy on average with other programs, where the servers were emulated on one machine;
  `not_compared` says why `seconds` is not held against the prediction, or "";
* `rank`: the fields of a `RankWork`, but for `operations`: an iteration of that rank;
* `operation`: the fields of an `OperationTimes`: a collective of an iteration;
* `demand`: `of_script`, whether what was planned for is seen to be what the script trains, so that
  measured figures may be held against predictions;
* `predicted`: `link_bytes`: bytes of an iteration on each link of the plan, predicted with the
  algorithms that the ranks chose;
* `groups`: `asked` (backends that the script named), `taken_over` and `opened_topoopt`;
* `alltoall`: a `collective` for which circuits could move: the `members` of its group (0: not
  recorded), `total_bytes`, `topologies` (0: circuits stayed), `why`, `moving_predicted_s` and
  `static_predicted_s`, the `seconds` that it took, `moving_s` of them while circuits moved, and
  `error`, why it was stopped, or "";
* `restart`: `number` of at most `most`, `failed` (`rank`, `exit_code` or minus the signal, and
  `message` of each rank that failed first), `lost_servers`, and the `servers` that went on;
* `growth`: servers that came to the running job: `came_servers` by their numbers among all of
  --nnodes MIN:MAX, the `servers` that went on, their `plan_digest`, `stopped_s` for which no rank
  trained, and `error`, why the job did not grow, or "";
* `hosts`: `servers`, if the job had fewer than those of `run` when this host was taken in;
* `end`: `exit_code`.

A last line that a crash cut short is left out and mentioned; anything else that cannot be read is a
`DocumentError` naming line and field.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeGuard

from torch_topoopt.op_graph import OpGraph
from torch_topoopt.plan import Link, LinkTraffic, Plan
from torch_topoopt.plan.codec import DocumentError, decode
from torch_topoopt.plan.rank_work import OperationTimes, RankWork

STAGES = ("profile", "co-optimise", "wire", "train")


@dataclass(frozen=True)
class RunStart:
    """The start of the run; `time` is an ISO 8601 text."""

    command: tuple[str, ...]
    servers: int
    degree: int
    seed: int
    time: str


@dataclass(frozen=True)
class MeasuredIterations:
    """`count` measured training iterations of `seconds` each. The first one ended after
    `start_up_s`. Other programs kept `other_processors` busy. None: not recorded. `not_compared`
    is the reason not to compare `seconds` with the prediction; "" if it is compared."""

    count: int
    seconds: float
    start_up_s: float | None = None
    other_processors: float | None = None
    not_compared: str = ""


@dataclass(frozen=True)
class FailedRank:
    """A rank whose failure ended an attempt; `message` is empty where it left none."""

    rank: int
    exit_code: int
    message: str


@dataclass(frozen=True)
class RestartRecord:
    """Restart `number` of at most `most`, on `servers` servers. `lost_servers` are the lost ones,
    by their earlier numbers."""

    number: int
    most: int
    failed: tuple[FailedRank, ...]
    lost_servers: tuple[int, ...]
    servers: int
    time_s: float


@dataclass(frozen=True)
class GrowthRecord:
    """Servers that came to the running job, which went on with `servers`. `came_servers` have the
    numbers of --nnodes MIN:MAX. `error` is the reason for which they were not taken in, or ""."""

    came_servers: tuple[int, ...]
    servers: int
    plan_digest: str
    stopped_s: float
    error: str
    time_s: float


@dataclass(frozen=True)
class AllToAllRecord:
    """A collective for which circuits could move; times in seconds. They stayed if `topologies` is
    0. `error` is the reason for an abort, or "". `members` is 0 in runs that did not record it."""

    total_bytes: int
    topologies: int
    why: str
    moving_predicted_s: float
    static_predicted_s: float
    seconds: float
    moving_s: float
    error: str
    time_s: float
    collective: str = "all_to_all"
    members: int = 0


@dataclass(frozen=True)
class StepRecord:
    """The training after `iteration` iterations: seconds of one, and the last loss."""

    iteration: int
    step_s: float
    loss: float | None
    time_s: float


@dataclass
class Metrics:
    """The contents of `metrics.jsonl`; `notes` are sentences for the reader of a report.

    `of_script` is False where the plan is for another model than that of the script.
    `predicted_bytes` are of the algorithms that the ranks chose, by link. `servers` is the last
    number of servers if it has changed since `start`.
    """

    start: RunStart | None = None
    stages: dict[str, float] = field(default_factory=dict)
    train: list[dict[str, Any]] = field(default_factory=list)
    steps: list[StepRecord] = field(default_factory=list)
    links: dict[Link, LinkTraffic] = field(default_factory=dict)
    iterations: MeasuredIterations | None = None
    of_script: bool = True
    predicted_bytes: tuple[int, ...] | None = None
    restarts: list[RestartRecord] = field(default_factory=list)
    growths: list[GrowthRecord] = field(default_factory=list)
    servers: int | None = None
    all_to_alls: list[AllToAllRecord] = field(default_factory=list)
    ranks: list[RankWork] = field(default_factory=list)
    operations: list[OperationTimes] = field(default_factory=list)
    exit_code: int | None = None
    notes: list[str] = field(default_factory=list)


def is_number(value: Any) -> TypeGuard[float]:
    """True for a finite int or float; booleans are not numbers here."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _whole(event: dict[str, Any], name: str, where: str) -> int:
    value = event.get(name)
    if type(value) is not int or value < 0:
        raise DocumentError(f"{where}: {name}: expected an integer from 0 on, got {value!r}")
    return value


def _text(event: dict[str, Any], name: str, where: str) -> str:
    value = event.get(name)
    if not isinstance(value, str):
        raise DocumentError(f"{where}: {name}: expected a text, got {value!r}")
    return value


def _read_start(event: dict[str, Any], where: str) -> RunStart:
    command = event.get("command")
    if not isinstance(command, list) or not all(isinstance(word, str) for word in command):
        raise DocumentError(f"{where}: command: expected a list of texts, got {command!r}")
    return RunStart(
        tuple(command),
        _whole(event, "servers", where),
        _whole(event, "degree", where),
        _whole(event, "seed", where),
        _text(event, "time", where),
    )


def _add_stage(metrics: Metrics, event: dict[str, Any], where: str) -> None:
    name, seconds = _text(event, "name", where), event.get("seconds")
    if name not in STAGES:
        raise DocumentError(f"{where}: name: {name!r} is not one of {', '.join(STAGES)}")
    if not is_number(seconds) or seconds < 0:
        raise DocumentError(f"{where}: seconds: expected a number from 0 on, got {seconds!r}")
    metrics.stages[name] = metrics.stages.get(name, 0.0) + seconds


def _add_link(metrics: Metrics, event: dict[str, Any], where: str) -> None:
    fields = {name: value for name, value in event.items() if name not in ("event", "time_s")}
    try:
        traffic: LinkTraffic = decode(LinkTraffic, fields).validate()
    except DocumentError as error:
        raise DocumentError(f"{where}: {error}") from None
    if traffic.link in metrics.links:
        raise DocumentError(
            f"{where}: link {link_name(traffic.link)} was measured on an earlier line"
        )
    metrics.links[traffic.link] = traffic


def _iterations(event: dict[str, Any], where: str) -> MeasuredIterations:
    seconds = event.get("seconds")
    if not is_number(seconds) or seconds <= 0:
        raise DocumentError(f"{where}: seconds: expected a number above 0, got {seconds!r}")
    noted: dict[str, float | None] = {}
    for name in ("start_up_s", "other_processors"):
        value = event.get(name)
        if value is not None and (not is_number(value) or value < 0):
            raise DocumentError(f"{where}: {name}: expected a number from 0 on, got {value!r}")
        noted[name] = value
    not_compared = event.get("not_compared", "")
    if not isinstance(not_compared, str):
        raise DocumentError(f"{where}: not_compared: expected a text, got {not_compared!r}")
    count = _whole(event, "count", where)
    return MeasuredIterations(count, seconds, not_compared=not_compared, **noted)


def _flag(event: dict[str, Any], name: str, where: str) -> bool:
    value = event.get(name)
    if not isinstance(value, bool):
        raise DocumentError(f"{where}: {name}: expected true or false, got {value!r}")
    return value


def _add_record(metrics: Metrics, event: dict[str, Any], where: str) -> None:
    fields = {name: value for name, value in event.items() if name != "event"}
    try:
        if event["event"] == "step":
            metrics.steps.append(decode(StepRecord, fields))
        elif event["event"] == "restart":
            restart: RestartRecord = decode(RestartRecord, fields)
            metrics.restarts.append(restart)
            metrics.servers = restart.servers if restart.lost_servers else metrics.servers
        elif event["event"] == "growth":
            growth: GrowthRecord = decode(GrowthRecord, fields)
            metrics.growths.append(growth)
            metrics.servers = metrics.servers if growth.error else growth.servers
        elif event["event"] == "rank":
            metrics.ranks.append(decode(RankWork, _without_time(fields)))
        elif event["event"] == "operation":
            metrics.operations.append(decode(OperationTimes, _without_time(fields)))
        else:
            metrics.all_to_alls.append(decode(AllToAllRecord, fields))
    except DocumentError as error:
        raise DocumentError(f"{where}: {error}") from None


def _without_time(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if name != "time_s"}


def _note_groups(metrics: Metrics, event: dict[str, Any], where: str) -> None:
    """A note if the script trained over another backend."""
    asked, taken = (event.get(name) for name in ("asked", "taken_over"))
    for name, value in (("asked", asked), ("taken_over", taken)):
        if not isinstance(value, list) or not all(isinstance(word, str) for word in value):
            raise DocumentError(f"{where}: {name}: expected a list of texts, got {value!r}")
    if _flag(event, "opened_topoopt", where):
        return
    others = [name for name in asked or [] if name not in (taken or [])]
    said = f"requested {', '.join(others)}" if others else "opened no process group"
    metrics.notes.append(
        f"No rank opened a topoopt group: the planned links carried nothing; the script {said}."
    )


def _note_gap(metrics: Metrics, event: dict[str, Any], where: str) -> None:
    """A note of what the run folder lacks."""
    time_s = event.get("time_s")
    if not is_number(time_s) or time_s < 0:
        raise DocumentError(f"{where}: time_s: expected a number from 0 on, got {time_s!r}")
    metrics.notes.append(f"{time_s:.0f} s into the run: {_text(event, 'why', where)}.")


def _note_cable(metrics: Metrics, event: dict[str, Any], where: str) -> None:
    """A note of a cable that stayed lost, and of its move to spare ports."""
    time_s = event.get("time_s")
    if not is_number(time_s) or time_s < 0:
        raise DocumentError(f"{where}: time_s: expected a number from 0 on, got {time_s!r}")
    metrics.notes.append(f"{time_s:.0f} s into the run, {_text(event, 'what', where)}.")


def _predicted(metrics: Metrics, event: dict[str, Any], where: str) -> None:
    sizes = event.get("link_bytes")
    if not isinstance(sizes, list) or not all(type(size) is int and size >= 0 for size in sizes):
        raise DocumentError(f"{where}: link_bytes: expected a list of integers from 0 on")
    metrics.predicted_bytes = tuple(sizes)


def _note_hosts(metrics: Metrics, event: dict[str, Any], where: str) -> None:
    metrics.servers = _whole(event, "servers", where)


# by kind of event
_READERS = {
    "hosts": _note_hosts,
    "groups": _note_groups,
    "gap": _note_gap,
    "cable": _note_cable,
    "predicted": _predicted,
}


def _parse_lines(data: bytes, name: str) -> tuple[list[tuple[str, dict[str, Any]]], list[str]]:
    """(position, event) of every line, and a note if the last one is torn."""
    events: list[tuple[str, dict[str, Any]]] = []
    lines = data.splitlines()
    for number, line in enumerate(lines, 1):
        where = f"{name}:{number}"
        if not line.strip():
            continue
        try:
            event = json.loads(line.decode("utf-8"))
        except (ValueError, RecursionError):
            if number == len(lines):
                note = f"The last line of {name} ({number}) was cut short and is left out."
                return events, [note]
            raise DocumentError(f"{where}: not a line of JSON") from None
        if not isinstance(event, dict):
            raise DocumentError(f"{where}: expected an object, got {type(event).__name__}")
        events.append((where, event))
    return events, []


def parse_metrics(data: bytes, name: str = "metrics.jsonl") -> Metrics:
    """Reads the bytes of a `metrics.jsonl`; the last `run` event starts the record.

    Raises DocumentError, prefixed with `name` and the line number.
    """
    events, notes = _parse_lines(data, name)
    starts = [i for i, (_, event) in enumerate(events) if event.get("event") == "run"]
    if len(starts) > 1:
        notes.append(f"{name} records {len(starts)} runs; this report shows the last.")
        events = events[starts[-1] :]
    metrics = Metrics(notes=notes)
    unknown: Counter[str] = Counter()
    for where, event in events:
        kind = _text(event, "event", where)
        if kind == "run":
            metrics.start = _read_start(event, where)
        elif kind == "stage":
            _add_stage(metrics, event, where)
        elif kind == "train":
            metrics.train.append({key: value for key, value in event.items() if key != "event"})
        elif kind == "link":
            _add_link(metrics, event, where)
        elif kind == "demand":
            metrics.of_script = _flag(event, "of_script", where)
        elif kind in _READERS:
            _READERS[kind](metrics, event, where)
        elif kind == "iterations":
            metrics.iterations = _iterations(event, where)
        elif kind in ("step", "restart", "growth", "alltoall", "rank", "operation"):
            _add_record(metrics, event, where)
        elif kind == "end":
            code = event.get("exit_code")
            if type(code) is not int:
                raise DocumentError(f"{where}: exit_code: expected an integer, got {code!r}")
            metrics.exit_code = code
        else:
            unknown[kind] += 1
    for kind, count in sorted(unknown.items()):
        metrics.notes.append(f"{name}: events of unknown kind {kind!r} are not shown ({count}).")
    return metrics


@dataclass(frozen=True)
class Run:
    """A run folder, or a plan without a run, whose `metrics` is None: `topoopt run` writes
    metrics.jsonl first. `graph` is None if there is no OpGraph."""

    plan: Plan
    graph: OpGraph | None
    metrics: Metrics | None
    notes: tuple[str, ...]

    @property
    def compares_bytes(self) -> bool:
        """Whether the plan predicts the bytes of the trained model."""
        return self.plan.predicts_bytes and (self.metrics is None or self.metrics.of_script)

    @property
    def compares_time(self) -> bool:
        """Whether the plan predicts the iteration time of the trained model."""
        return self.plan.predicts_time and (self.metrics is None or self.metrics.of_script)

    @property
    def why_time_not_compared(self) -> str:
        """The reason not to compare a measured iteration with the prediction; "" if compared."""
        iterations = self.metrics.iterations if self.metrics else None
        return iterations.not_compared if iterations is not None and self.compares_time else ""


def _check_links(plan: Plan, metrics: Metrics) -> None:
    planned = set(plan.network.links)
    for link in metrics.links:
        if link not in planned:
            raise DocumentError(f"metrics.jsonl: link {link_name(link)} is not a link of plan.json")


def _as_run(plan: Plan, metrics: Metrics) -> Plan:
    """The plan with the bytes that were predicted when the job's algorithms were known."""
    sizes = metrics.predicted_bytes
    if sizes is None:
        return plan
    if len(sizes) != len(plan.network.links):
        raise DocumentError(
            f"metrics.jsonl: {len(sizes)} predicted sizes are not one for each of the "
            f"{len(plan.network.links)} links of plan.json"
        )
    return replace(plan, prediction=replace(plan.prediction, link_bytes=sizes))


def _mismatches(plan: Plan, graph: OpGraph | None, metrics: Metrics | None) -> list[str]:
    """Notes on files that do not seem to belong together."""
    notes = []
    if graph is not None:
        if (graph.model, graph.batch_size) != (plan.model, plan.batch_size):
            notes.append(
                f"opgraph.json is of model {graph.model!r} with batch size {graph.batch_size}, "
                f"plan.json of {plan.model!r} with {plan.batch_size}."
            )
        known = {operator.name for operator in graph.operators}
        unknown = [p.operator for p in plan.strategy if p.operator not in known]
        if unknown:
            notes.append(f"plan.json places operators that opgraph.json lacks: {unknown[0]!r}.")
    if metrics is None:
        return notes
    start, cluster = metrics.start, plan.cluster
    if metrics.servers is not None and metrics.servers != cluster.servers:
        notes.append(
            f"after its last restart or growth the job had {metrics.servers} servers, plan.json "
            f"has {cluster.servers}."
        )
    elif (
        metrics.servers is None
        and start
        and (start.servers, start.degree) != (cluster.servers, cluster.degree)
    ):
        notes.append(
            f"metrics.jsonl is of {start.servers} servers of degree {start.degree}, "
            f"plan.json of {cluster.servers} of degree {cluster.degree}."
        )
    unmeasured = len(plan.network.links) - len(metrics.links)
    if metrics.links and unmeasured:
        notes.append(f"{unmeasured} of {len(plan.network.links)} links have no measured traffic.")
    return notes


def read_plan(path: Path) -> Run:
    """Reads a plan and its model's OpGraph, NAME.opgraph.json or opgraph.json in the same folder.
    Raises DocumentError for an invalid one and OSError for a plan that cannot be read."""
    plan = Plan.load(path)
    graph = None
    for beside in (path.with_suffix(".opgraph.json"), path.with_name("opgraph.json")):
        if graph is None and beside.is_file():
            found = OpGraph.load(beside)
            if (found.model, found.batch_size) == (plan.model, plan.batch_size):
                graph = found
    return Run(plan, graph, None, tuple(_mismatches(plan, graph, None)))


def read_run(run_dir: Path) -> Run:
    """Reads a run folder; without metrics.jsonl it holds a plan that has not been run.

    Raises DocumentError if `plan.json` is missing or any file is corrupt or does not match it.
    """
    paths = {name: Path(run_dir) / name for name in ("opgraph.json", "plan.json", "metrics.jsonl")}
    if not paths["plan.json"].is_file():
        raise DocumentError(
            f"{paths['plan.json']}: missing; a report needs a run folder in which `topoopt run` "
            "got as far as writing its plan"
        )
    if not paths["metrics.jsonl"].is_file():
        return read_plan(paths["plan.json"])
    plan = Plan.load(paths["plan.json"])
    notes = []
    graph = None
    if paths["opgraph.json"].is_file():
        graph = OpGraph.load(paths["opgraph.json"])
    elif plan.strategy:
        notes.append(
            "opgraph.json is missing (the run was interrupted, or was given its plan), so what the "
            "model computes cannot be shown."
        )
    try:
        metrics = parse_metrics(paths["metrics.jsonl"].read_bytes())
        _check_links(plan, metrics)
        plan = _as_run(plan, metrics)
    except DocumentError as error:
        raise DocumentError(f"{Path(run_dir)}/{error}") from None
    notes += metrics.notes
    if not metrics.of_script and (plan.predicts_time or plan.predicts_bytes):
        notes.append(
            f"The plan is for the model {plan.model}, which is not seen to be that of the script: "
            "what was measured is not compared with its predictions."
        )
    notes += _mismatches(plan, graph, metrics)
    return Run(plan, graph, metrics, tuple(notes))


def link_name(link: Link) -> str:
    """ "0:1 -> 3:0": server 0 port 1 to server 3 port 0."""
    return f"{link.source}:{link.source_port} -> {link.target}:{link.target_port}"
