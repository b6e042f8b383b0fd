"""Planning by plan, run and compare: their shared options, and the resulting Plan."""

from __future__ import annotations

import argparse
import ast
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from torch_topoopt.launcher import documents, shared_options
from torch_topoopt.launcher.errors import InputError, input_errors
from torch_topoopt.launcher.plan import programs, strategy_files
from torch_topoopt.plan.units import counted, format_gbps
from torch_topoopt.search.defaults import few_servers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from torch_topoopt.op_graph import OpGraph
    from torch_topoopt.parallel import Program
    from torch_topoopt.plan import Cluster, Network, Plan
    from torch_topoopt.plan.layout import Layout, OffloadChoice, Precision
    from torch_topoopt.planner.options import MicroBatches, PlanningOptions
    from torch_topoopt.search.strategies import Strategy

Space = Literal["all", "layouts", "full", "samples", "data-parallel", "pipeline"]
_OF_STRATEGIES = ("strategy", "micro_batches", "stages")  # not of layouts
_NEED_NO_MODEL = ("routing", "mode", "seed")
_CALLS: tuple[tuple[str, Space], ...] = (("pipeline", "pipeline"), ("parallelize", "full"))


@dataclass(frozen=True)
class PlanningChoice:
    """The shared options; `options` are the planner's own.

    `strategy` is the name of a file; `micro_batches` is None if unset, `stages` if any number is
    allowed. `layout` is the text of a layout to price.
    """

    space: Space
    stages: int | None
    micro_batches: MicroBatches | None
    strategy: str | None
    batch_size: int | None
    costs: str | None
    text: documents.TextOptions
    options: PlanningOptions
    layout: str | None = None

    @classmethod
    def of(
        cls,
        arguments: argparse.Namespace,
        model: str,
        script: str | None = None,
        *,
        layout_spaces: tuple[Space, ...] = (),
    ) -> PlanningChoice:
        """Checks as far as possible without the model; raises InputError.

        `script` is the script to train, if known; else `model` may be a script. `layout_spaces` are
        the verb's spaces with layouts.
        """
        from torch_topoopt.planner.options import PlanningOptions
        from torch_topoopt.search.two_levels import SearchOptions

        space = space_of(arguments.strategy_space, model, script)
        if space in ("layouts", "all") and space not in layout_spaces:
            raise InputError(
                f"strategy-space: {space} is a space of `topoopt plan`; its plan can be run with "
                "--plan"
            )
        if space == "layouts" or getattr(arguments, "layout", None) is not None:
            space = _space_of_layouts(arguments)
        elif "all" in layout_spaces:
            space = _all_unless_strategies(arguments, space)
        _check_pipeline(arguments, space)
        _check_files_and_batch(arguments)
        chosen = cls(
            space=space,
            stages=arguments.stages,
            micro_batches=arguments.micro_batches,
            strategy=arguments.strategy,
            batch_size=arguments.batch_size,
            costs=arguments.costs,
            text=documents.TextOptions.of(arguments),
            layout=getattr(arguments, "layout", None),
            options=PlanningOptions(
                seed=arguments.seed,
                rounds=arguments.rounds,
                evaluations=arguments.evaluations,
                strategy_space="full" if space == "pipeline" else space,
                mode=arguments.mode,
                ablation=arguments.ablation,
                routing=arguments.routing,
                optimizer_factor=_optimizer_factor(arguments),
                optimizer=arguments.optimizer,
                software=getattr(arguments, "software", "compiled"),
                precision=_precision(arguments, space, script),
                offload=_offload(arguments, space),
                search=SearchOptions(chains=arguments.chains, ray=arguments.ray),
            ),
        )
        with input_errors():
            chosen.options.validate()
        return chosen

    def op_graph(self, model: str, cluster: Cluster) -> OpGraph:
        """The OpGraph to plan for: MODEL, with its batch and costs; raises InputError."""
        return documents.op_graph_of(
            model,
            self.batch_size,
            accelerators=cluster.servers * cluster.accelerators_per_server,
            costs=self.costs,
            text=self.text,
            precision=self.options.precision,
        )

    def graph_and_program(self, model: str, cluster: Cluster) -> tuple[OpGraph, Program]:
        """As `op_graph`, with what can be executed."""
        return programs.graph_and_program(
            model,
            # a pipeline's first stage has its input, and its last its output, locally
            boundary=self.space != "pipeline",
            batch_size=self.batch_size,
            accelerators=cluster.servers * cluster.accelerators_per_server,
            costs=self.costs,
        )

    def plan(
        self,
        graph: OpGraph,
        cluster: Cluster,
        progress: Callable[[float | None, str], None],
        *,
        network: Network | None = None,
        program: Program | None = None,
        why_not_layout: Callable[[Layout], str] | None = None,
        keep_best: bool = False,
    ) -> Plan:
        """The Plan; with a `program`, or a layout that `why_not_layout` has no reason against, an
        executable one. Raises InputError, and with `keep_best` StoppedEarly, as
        `documents.make_plan`."""
        options = replace(self.options, network=network, why_not_layout=why_not_layout)
        if self.layout is not None:
            options = replace(options, layout=self._given_layout(graph, cluster, options))
        if self.space == "pipeline" and self.strategy is None:
            asked = "auto" if self.micro_batches is None else self.micro_batches
            options = replace(options, micro_batches=asked)
            return self._plan_pipeline(graph, program, cluster, options, progress)
        micro_batches = self.micro_batches
        if program is not None and self.space != "data-parallel":
            from torch_topoopt.parallel.executable import executable

            options = replace(options, executable=executable(program, cluster))
        if self.strategy is not None:
            count = micro_batches if isinstance(micro_batches, int) else None
            given = strategy_files.load_strategy(self.strategy, graph, cluster.servers, count)
            micro_batches = given.micro_batches if micro_batches is None else micro_batches
            options = replace(options, strategy=given.strategy)
            if program is not None:
                programs.check_strategy(given, program, cluster, self.strategy)
        if micro_batches is None:
            pipelines = self.space == "all" and few_servers(cluster.servers)
            micro_batches = "auto" if pipelines else 1
        options = replace(options, micro_batches=micro_batches)
        return documents.make_plan(graph, cluster, options, progress, keep_best=keep_best)

    def _given_layout(self, graph: OpGraph, cluster: Cluster, options: PlanningOptions) -> Layout:
        from torch_topoopt.plan.layout import layouts_from
        from torch_topoopt.planner.layout_planning import LayoutPlanning

        assert self.layout is not None
        accelerators = cluster.servers * cluster.accelerators_per_server
        with input_errors("layout"):
            layouts = layouts_from(self.layout, accelerators, graph.batch_size)
        with input_errors():
            return LayoutPlanning(graph, cluster, options).fastest_of(layouts)

    def _plan_pipeline(
        self,
        graph: OpGraph,
        program: Program | None,
        cluster: Cluster,
        options: PlanningOptions,
        progress: Callable[[float | None, str], None],
    ) -> Plan:
        from torch_topoopt.parallel import StrategyError, stages_of
        from torch_topoopt.planner.pipeline_plan import plan_pipeline

        def why_not(strategy: Strategy) -> str:
            assert program is not None
            try:
                stages_of(program, strategy)
            except StrategyError as error:
                return str(error).removeprefix("strategy: ")
            return ""

        with input_errors():
            return plan_pipeline(
                graph,
                cluster,
                options,
                stages=self.stages,
                why_not=None if program is None else why_not,
                on_progress=documents.shown(progress),
            )

    def options_from(self, plan: Plan) -> PlanningOptions:
        """Continues the search at the strategy of `plan`, if nothing else was requested."""
        if self.space == "pipeline":
            return replace(self.options, evaluations=0, strategy=plan.strategy)
        if self.strategy is not None:
            return replace(self.options, strategy=plan.strategy)
        return self.options


def _space_of_layouts(arguments: argparse.Namespace) -> Space:
    """The space layouts, with the options that it has; raises InputError for others."""
    if arguments.strategy_space not in ("auto", "layouts"):
        raise InputError("layout: is only for --strategy-space layouts")
    for name in _OF_STRATEGIES:
        if getattr(arguments, name, None) is not None:
            raise InputError(f"{name}: is only for spaces of strategies, and not for layouts")
    return "layouts"


def _all_unless_strategies(arguments: argparse.Namespace, space: Space) -> Space:
    """By default all spaces for a model, unless options of strategies are given."""
    wanted = (*_OF_STRATEGIES, "export_strategy")
    strategies = any(getattr(arguments, name, None) is not None for name in wanted)
    if arguments.strategy_space != "auto" or space != "full" or strategies:
        return space
    if arguments.ablation != "both" or arguments.model.endswith(".py"):
        return space
    return "all"


def _precision(arguments: argparse.Namespace, space: Space, script: str | None) -> Precision:
    """The precision in which a layout computes: by default that of the call in the script."""
    asked: Precision | None = getattr(arguments, "precision", None)
    if space == "layouts":
        return asked or precision_of(script)
    if asked is not None:
        raise InputError("precision: is only for --layout and --strategy-space layouts")
    return "own"


def _offload(arguments: argparse.Namespace, space: Space) -> OffloadChoice:
    """Where layouts keep their state."""
    asked: OffloadChoice | None = getattr(arguments, "offload", None)
    if asked is not None and getattr(arguments, "layout", None) is not None:
        raise InputError("offload: is a part of --layout, as offload=host; leave --offload out")
    if asked is not None and space not in ("layouts", "all"):
        raise InputError("offload: is only for --strategy-space layouts and all")
    return asked or "auto"


def precision_of(script: str | None) -> Precision:
    """The literal `precision` of a call of torch_topoopt in `script`, such as torch.bfloat16."""
    for _, call in _calls(script) if script else ():
        for keyword in call.keywords:
            if keyword.arg == "precision" and ast.unparse(keyword.value) == "torch.bfloat16":
                return "bf16"
    return "own"


def _optimizer_factor(arguments: argparse.Namespace) -> float:
    """The optimizer's bytes for each byte of gradients."""
    if arguments.optimizer is None:
        return arguments.optimizer_state or 0.0
    if arguments.optimizer_state is not None:
        raise InputError("optimizer-state: --optimizer says it; leave --optimizer-state out")
    from torch_topoopt.search.accelerators import accelerator
    from torch_topoopt.search.layouts.state import state_on
    from torch_topoopt.search.optimizers import optimizer

    name = arguments.accelerator or shared_options.DEFAULT_ACCELERATOR
    with input_errors():
        return state_on(accelerator(name), optimizer(arguments.optimizer)).optimizer


def _check_files_and_batch(arguments: argparse.Namespace) -> None:
    for name in ("batch_size", "chains"):
        value = getattr(arguments, name)
        if value is not None and value < 1:
            raise InputError(f"{name}: must be at least 1 (got {value})")
    counts = arguments.micro_batches
    for count in counts if isinstance(counts, tuple) else (counts,):
        if isinstance(count, int) and count < 1:
            raise InputError(f"micro_batches: must be at least 1 (got {count})")
    for name in ("costs", "strategy"):
        path = getattr(arguments, name)
        if path is not None and not Path(path).is_file():
            raise InputError(f"{name}: {path}: there is no such file")


def _check_pipeline(arguments: argparse.Namespace, space: Space) -> None:
    if space != "pipeline":
        if arguments.stages is not None:
            raise InputError("stages: is only for --strategy-space pipeline")
        return
    for name in ("stages", "micro_batches"):
        value = getattr(arguments, name)
        for number in value if isinstance(value, tuple) else (value,):
            if isinstance(number, int) and number < 2:
                raise InputError(f"{name.replace('_', '-')}: must be at least 2 (got {number})")


def given(arguments: argparse.Namespace, *more: str) -> list[str]:
    """The planning options with values other than their defaults; `more` are others."""
    defaults = argparse.ArgumentParser()
    fixed = (*shared_options.CLUSTER, "accelerator")
    names = [*(name for name in shared_options.PLANNING if name not in fixed), *more]
    shared_options.add(defaults, *names)
    dests = {name: name.replace("-", "_") for name in names}
    return [
        name
        for name, dest in dests.items()
        if getattr(arguments, dest) != defaults.get_default(dest)
    ]


def refuse_without_model(
    names: Iterable[str], arguments: argparse.Namespace, script: str, advice: str
) -> None:
    """Raises InputError for options that need a model if `script` has none."""
    for name in names:
        data_parallel = name == "strategy-space" and arguments.strategy_space == "data-parallel"
        if name not in _NEED_NO_MODEL and not data_parallel:
            raise InputError(
                f"{name}: needs the model, and {script} has no build_model(){advice}, or leave "
                f"--{name} out"
            )


def check_counts(choice: PlanningChoice, cluster: Cluster) -> None:
    """Raises InputError unless stages, a given layout and a given batch size divide the cluster's
    servers and accelerators. A layout is checked again with the samples of the model."""
    from torch_topoopt.plan.layout import layout_from

    check_stages(choice, cluster)
    accelerators = cluster.servers * cluster.accelerators_per_server
    if choice.layout is not None:
        with input_errors("layout"):
            layout_from(choice.layout, accelerators, choice.batch_size)
    if choice.batch_size is not None:
        documents.check_shared_evenly(choice.batch_size, accelerators)


def check_stages(choice: PlanningChoice, cluster: Cluster) -> None:
    """Raises InputError unless stages have equal numbers of servers."""
    if choice.stages is not None and cluster.servers % choice.stages:
        raise InputError(
            f"stages: {choice.stages} does not divide {cluster.servers} servers evenly"
        )


def space_of(asked: str, model: str, script: str | None = None) -> Space:
    """The requested strategy space; "auto" depends on the functions that the script calls.

    A model (a name, file.py:callable or *.json) without a script may be split in any way.
    """
    if asked != "auto":
        return asked  # type: ignore[return-value]  # one of the parser's choices
    if script is None:
        if not model.endswith(".py"):
            return "full"
        script = model
    called = {name for name, _ in _calls(script)}
    return next((space for name, space in _CALLS if name in called), "data-parallel")


def divides_model(script: str) -> bool:
    """Whether `script` leaves the division of its model to this package."""
    return space_of("auto", "", script) != "data-parallel"


def check_divides(script: str) -> None:
    """Raises InputError if `script` does not leave the division of its model to this package."""
    if not divides_model(script):
        raise InputError(
            f"layout: {script} calls neither torch_topoopt.parallelize nor pipeline, which divide "
            "a model"
        )


def check_executes(layout: Layout, script: str) -> None:
    """Raises InputError if the call of torch_topoopt in `script` cannot execute `layout`."""
    if _has_no_steps(script):
        from torch_topoopt.parallel.api import check_without_steps

        with input_errors():
            check_without_steps(layout)
    else:
        from torch_topoopt.parallel.sharded.schedules import check_schedule

        with input_errors():
            check_schedule(layout)


def _has_no_steps(script: str) -> bool:
    """Whether `script` calls parallelize, which executes the layouts of a single pass."""
    return space_of("auto", "", script) == "full"


def why_not_layout(
    choice: PlanningChoice, graph: OpGraph, model: str, script: str
) -> Callable[[Layout], str]:
    """The reason why `script` cannot execute a layout of MODEL; empty if it can."""
    from torch_topoopt.parallel import StrategyError
    from torch_topoopt.parallel.api import check_without_steps
    from torch_topoopt.parallel.executable import ExecutableLayouts

    layouts = ExecutableLayouts(programs.module_of(model, choice.batch_size), graph)
    has_no_steps = _has_no_steps(script)

    def why_not(layout: Layout) -> str:
        try:
            if has_no_steps:
                check_without_steps(layout)
        except StrategyError as error:
            return str(error).removeprefix("layout: ")
        return layouts.why_not(layout)

    return why_not


def _calls(script: str) -> list[tuple[str, ast.Call]]:
    """The calls of functions of torch_topoopt, by name: `torch_topoopt.f(...)`, or imported."""
    try:
        tree = ast.parse(Path(script).read_text(encoding="utf-8"))
    except (OSError, ValueError, SyntaxError):  # not Python, or missing: no call
        return []
    modules: set[str] = set()
    functions: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules.update(
                name.asname or name.name for name in node.names if name.name == "torch_topoopt"
            )
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("torch_topoopt"):
            functions.update({name.asname or name.name: name.name for name in node.names})
    called: list[tuple[str, ast.Call]] = []
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        function = node.func
        if isinstance(function, ast.Name) and function.id in functions:
            called.append((functions[function.id], node))
        elif isinstance(function, ast.Attribute):
            owner = function.value
            if isinstance(owner, ast.Name) and owner.id in modules:
                called.append((function.attr, node))
    return called


def assumptions(
    cluster: Cluster, space: str | None = None, model: str = "", batch_size: int | None = None
) -> str:
    """The conditions of a prediction in one line: accelerator, batch, ports and bandwidth."""
    what = f"{model}, " if model else ""
    if batch_size:
        what += f"{counted(batch_size, 'sample')} per iteration, "
    each = f"{cluster.accelerators_per_server} x {cluster.accelerator}"
    ports = counted(cluster.degree, f"{cluster.ports} port")
    line = (
        f"assumed: {what}{counted(cluster.servers, 'server')}, each with {each} and {ports} of "
        f"{format_gbps(cluster.link_gbps)}"
    )
    return f"{line}; strategy space {space}" if space else line


def whole_model_lines(graph: OpGraph) -> list[str]:
    """A line for a model without splittable operators, all of which every server would compute."""
    if any(operator.splittable or operator.splits for operator in graph.operators):
        return []
    return [
        f"note: no operator of {graph.model} can be split, neither by its "
        f"{counted(graph.batch_size, 'sample')} nor otherwise: nothing in it grows with the first "
        "dimension of its batch's tensors"
    ]
