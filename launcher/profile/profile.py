"""`topoopt profile`: the OpGraph of a model, or the collectives of a training script."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from torch_topoopt.launcher import console, documents, parser, shared_options
from torch_topoopt.launcher.errors import OK, InputError
from torch_topoopt.launcher.profile import measure as profile_measure
from torch_topoopt.launcher.profile import script as profile_script
from torch_topoopt.launcher.profile import trace as profile_trace
from torch_topoopt.plan.units import counted, format_bytes, format_flops, format_seconds

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Sequence

    from torch_topoopt.op_graph import Operator, OpGraph, RepeatedLayer

_DESCRIPTION = """\
Traces one training iteration of a model without allocating it, and prints its operators: FLOPs,
bytes of parameters, activations and gradients. A layer that the model has several times is shown
once, and how many times. MODEL is the name of a shipped model, a file and a
callable that returns an nn.Module (file.py:callable), a script that has a build_model(), a
configuration of transformers (config.json), or a saved opgraph.json.

With --accelerator, also what each operator takes there: an estimate by FLOPs, bytes and the kind of
operator, or what was measured (--measure, --costs). "cpu" is this machine, measured at the
first use.

With --world-size N, MODEL is your training script as it is (DDP, FSDP2, tensor or pipeline
parallel): it runs as single ranks of a world of N until its optimizers have stepped twice, and its
collectives are printed with the demand that they make. Each rank is a process of its own, alone on
its server, without network. Its process groups are PyTorch's fake ones, whatever backend it names:
nothing is sent or reduced, so values are not those of a real run (a Recv gives ones; Broadcast and
Scatter change nothing), and a script that decides by what it receives may do something else.
Objects are not received: give pipeline stages input_args and output_args, for example.
torch.compile does nothing."""

_EXAMPLES = """\
  topoopt profile vgg
  topoopt profile train.py:make_net -o opgraph.json
  topoopt profile bert --accelerator h100:bf16
  topoopt profile Llama-3.1-8B/config.json --sequence 8192 --batch-size 4
  topoopt profile vgg:tiny --measure --output-costs costs.json    # then: topoopt plan --costs ...
  topoopt profile --from-trace trace.json --batch-size 64 -o opgraph.json
  topoopt profile --from-trace execution.json kineto.json --batch-size 64 -o opgraph.json
  topoopt profile train.py --world-size 8 --output-demand demand.json -- --epochs 3
  topoopt topology --servers 8 --degree 4 --demand demand.json"""


@dataclass(frozen=True)
class ProfiledLayer:
    """A layer that occurs several times in the model, and its number of operators."""

    kind: str
    operators: int
    count: int


@dataclass(frozen=True)
class ProfiledOperator:
    """An operator, and the seconds of its passes if an accelerator is given."""

    JSON_FIELDS: ClassVar = (
        "operator.name", "operator.kind", "operator.forward_flops", "operator.backward_flops",
        "operator.parameter_bytes", "operator.parameter_gradient_bytes", "operator.output_bytes",
        "operator.saved_bytes", "operator.splittable", "forward_s", "backward_s",
    )  # fmt: skip
    OMIT_IF_NONE: ClassVar = ("forward_s", "backward_s")

    operator: Operator
    forward_s: float | None = None
    backward_s: float | None = None


@dataclass(frozen=True)
class ProfiledModel:
    """The result of `topoopt profile`: one training iteration, in bytes and FLOPs."""

    JSON_FIELDS: ClassVar = (
        "graph.model", "graph.batch_size", "operator_count", "graph.forward_flops",
        "graph.backward_flops", "graph.parameter_bytes", "graph.parameter_gradient_bytes",
        "saved_bytes", "layers", "operators",
    )  # fmt: skip

    graph: OpGraph
    times: list[tuple[float, float]]

    def operator_count(self) -> int:
        return len(self.graph.operators)

    def saved_bytes(self) -> int:
        return sum(operator.saved_bytes for operator in self.graph.operators)

    def layers(self) -> list[ProfiledLayer]:
        return [ProfiledLayer(la.kind, la.length, len(la.starts)) for la in _repeated(self.graph)]

    def operators(self) -> list[ProfiledOperator]:
        if not self.times:
            return list(map(ProfiledOperator, self.graph.operators))
        pairs = zip(self.graph.operators, self.times, strict=True)
        return [ProfiledOperator(operator, *passes) for operator, passes in pairs]


def make_parser() -> argparse.ArgumentParser:
    """The options of the verb."""
    options = parser.Parser("profile", _DESCRIPTION, _EXAMPLES)
    options.add_argument(
        "model", metavar="MODEL", nargs="?", help="name, file.py:callable, script.py or *.json"
    )
    options.add_argument(
        "--from-trace",
        nargs="+",
        metavar="FILE",
        help="instead of MODEL: the operators that one rank's iteration of --batch-size samples "
        "recorded: a Kineto trace (torch.profiler, with record_shapes=True, .json or .json.gz), an "
        "execution trace (ExecutionTraceObserver), both of one run, or a Chakra trace (.et)",
    )
    options.add_argument(
        "-o",
        "--output",
        type=shared_options.output_file,
        metavar="FILE",
        help="also write the OpGraph, or the CommunicationTrace, here",
    )
    shared_options.add(
        options, "accelerator", help="show times on this one, as h100 or a100:bf16 (default: none)"
    )
    shared_options.add(
        options,
        "batch-size",
        help="samples to profile (default: the model's own, which is that of one accelerator)",
    )
    shared_options.add(options, *shared_options.TEXT)
    profile_measure.add_options(options)
    shared_options.add(options, "costs", "json")
    shared_options.add_verbosity(options)
    profile_script.add_options(options)
    return options


def main(argv: list[str]) -> int:
    """Runs the verb; returns the exit code."""
    own, dashes, script_arguments = profile_script.split(argv)
    arguments = make_parser().parse_args(own)
    profile_trace.check(arguments)
    if profile_script.wanted(arguments, dashes):
        return profile_script.main(arguments, script_arguments)
    if arguments.accelerator is not None:
        parser.check_accelerator(arguments.accelerator)
    if arguments.measure and arguments.costs is not None:
        raise InputError("costs: --measure makes new ones; give one of the two")
    for option in ("output_costs", "measure_limit"):
        if getattr(arguments, option) is not None and not arguments.measure:
            name = option.replace("_", "-")
            raise InputError(f"{name}: nothing is measured; add --measure, or leave --{name} out")
    terminal = console.Terminal.of(arguments)
    measured = None
    with terminal.progress(
        f"profiling {arguments.model or ' and '.join(arguments.from_trace)}"
    ) as progress:
        if arguments.measure:
            table, measured = profile_measure.measure(arguments, progress)
        progress(None, "tracing")
        graph = (
            profile_trace.load(arguments)
            if arguments.from_trace is not None
            else documents.op_graph_of(
                arguments.model,
                arguments.batch_size,
                costs=arguments.costs,
                text=documents.TextOptions.of(arguments),
            )
        )
        if arguments.measure:
            from torch_topoopt.profile.cost_table import with_costs

            graph = with_costs(graph, table)
    if arguments.output:
        documents.save(graph, arguments.output)
    measured_here = "cpu" if arguments.measure or arguments.costs else None
    times = _times(graph, arguments.accelerator or measured_here)
    if arguments.json:
        console.print_json(ProfiledModel(graph, times))
        return OK
    show(terminal, graph, times)
    if measured:
        terminal.line(measured)
    if arguments.output:
        terminal.line(f"OpGraph: {arguments.output}")
    return OK


def _times(graph: OpGraph, accelerator: str | None) -> list[tuple[float, float]]:
    """Seconds of both passes of every operator on the whole batch; none without an accelerator."""
    if accelerator is None:
        return []
    from torch_topoopt.search.accelerators import accelerator as device_of
    from torch_topoopt.search.accelerators import in_format, operator_seconds

    device = device_of(in_format(accelerator, graph.number_format))
    return [operator_seconds(device, operator, 1) for operator in graph.operators]


def show(
    terminal: console.Terminal, graph: OpGraph, times: Sequence[tuple[float, float]] = ()
) -> None:
    """The table of operators and the line of totals; a repeated layer is shown once.

    With `times`, seconds of both passes of every operator replace FLOPs.
    """
    columns = ("operator", "times", "kind", "forward", "backward", "parameters", "output", "split")
    work = [(format_seconds(passes[0]), format_seconds(passes[1])) for passes in times] or [
        (format_flops(operator.forward_flops), format_flops(operator.backward_flops))
        for operator in graph.operators
    ]
    terminal.table(
        f"{graph.model}, batch of {graph.batch_size}",
        columns,
        [
            (
                name,
                str(count) if count > 1 else "",
                operator.kind,
                *work[i],
                format_bytes(operator.parameter_bytes),
                format_bytes(operator.output_bytes),
                "yes" if operator.splittable else "no",
            )
            for i, operator, name, count in _once_each(graph)
        ],
    )
    for layer in _repeated(graph):
        operators = counted(layer.length, "operator")
        terminal.line(f"{len(layer.starts)} x {layer.kind}, {operators} each")
    if times:
        forward_s, backward_s = (sum(passes[i] for passes in times) for i in range(2))
        terminal.line(
            f"one accelerator, one operator after the other: {format_seconds(forward_s)} forward, "
            f"{format_seconds(backward_s)} backward"
        )
    terminal.line(summary(graph))


def _repeated(graph: OpGraph) -> list[RepeatedLayer]:
    return [layer for layer in graph.layers if len(layer.starts) > 1]


def _once_each(graph: OpGraph) -> Iterator[tuple[int, Operator, str, int]]:
    """(index, operator, name, how often); in the name of a repeated layer, `*` is its number."""
    skipped: set[int] = set()
    repeated: dict[int, tuple[str, int]] = {}
    for layer in _repeated(graph):
        first, second, *_ = layer.starts
        for i in range(layer.length):
            names = [graph.operators[start + i].name.split(".") for start in (first, second)]
            parts = [a if a == b else "*" for a, b in zip(*names, strict=False)]
            repeated[first + i] = (".".join(parts), len(layer.starts))
        skipped.update(i for s in layer.starts[1:] for i in range(s, s + layer.length))
    for i, operator in enumerate(graph.operators):
        if i not in skipped:
            yield i, operator, *repeated.get(i, (operator.name, 1))


def summary(graph: OpGraph) -> str:
    return (
        f"{graph.model}: {counted(len(graph.operators), 'operator')}, "
        f"{format_flops(graph.forward_flops)} forward and "
        f"{format_flops(graph.backward_flops)} backward per batch of {graph.batch_size}, "
        f"{format_bytes(graph.parameter_bytes)} of parameters"
    )
