"""Strategy files of `topoopt plan`: native JSON, the strategy of a plan, or FlexFlow's text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from torch_topoopt.launcher import documents
from torch_topoopt.launcher.errors import InputError, input_errors
from torch_topoopt.plan.file_kinds import wrong_kind

if TYPE_CHECKING:
    from torch_topoopt.op_graph import OpGraph
    from torch_topoopt.plan import Plan, StrategyFile
    from torch_topoopt.search.strategies import Strategy


class GivenStrategy(NamedTuple):
    """A checked strategy, and its number of micro-batches."""

    strategy: Strategy
    micro_batches: int


def load_strategy(
    path: str, graph: OpGraph, servers: int, micro_batches: int | None = None
) -> GivenStrategy:
    """The strategy of `path` for `graph` on `servers` servers, checked.

    A JSON object is a StrategyFile or a Plan, anything else FlexFlow's text. `micro_batches`
    replaces the file's. Raises InputError, in one line that begins with the path.
    """
    from torch_topoopt.search.flexflow_strategy import parse_flexflow
    from torch_topoopt.search.strategy_space import check_strategy

    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise InputError(f"{path}: cannot read this strategy: {error.strerror}") from None
    except UnicodeDecodeError:
        problem = wrong_kind(path, "Strategy") or "not a text file"
        raise InputError(f"{path}: {problem}") from None
    try:
        if text.lstrip().startswith("{"):
            document = _json_document(text)
            if document.servers != servers:
                raise ValueError(
                    f"servers: the strategy is for {document.servers}, the cluster has {servers}"
                )
            found = GivenStrategy(document.strategy, document.micro_batches)
        else:
            found = GivenStrategy(parse_flexflow(text, graph, servers), 1)
        if micro_batches is not None:
            found = found._replace(micro_batches=micro_batches)
        check_strategy(graph, servers, found.strategy, micro_batches=found.micro_batches)
    except ValueError as error:
        raise InputError(f"{path}: {wrong_kind(path, 'Strategy', 'Plan') or error}") from None
    return found


def _json_document(text: str) -> StrategyFile:
    from torch_topoopt.plan import Plan, StrategyFile

    try:
        is_plan = "network" in json.loads(text)
    except (ValueError, RecursionError):
        is_plan = False  # reading the document reports the error
    return strategy_of(Plan.from_json(text)) if is_plan else StrategyFile.from_json(text)


def strategy_of(plan: Plan) -> StrategyFile:
    """The facts of the model alone for `plan`; raises ValueError for a layout."""
    if plan.layout is not None:
        raise ValueError(f"layout: the plan has no strategy of operators, but {plan.layout}")
    from torch_topoopt.plan import StrategyFile

    return StrategyFile(
        version=StrategyFile.VERSION,
        model=plan.model,
        batch_size=plan.batch_size,
        servers=plan.cluster.servers,
        strategy=plan.strategy,
        micro_batches=plan.micro_batches,
    ).validate()


def save_strategy(path: str, graph: OpGraph, plan: Plan) -> None:
    """Writes the strategy of `plan`: native JSON where the name ends in .json, else FlexFlow's.

    Raises InputError for strategies outside the format, and for an unwritable file.
    """
    from torch_topoopt.plan.codec import write_text_atomically
    from torch_topoopt.search.flexflow_strategy import flexflow_text

    with input_errors():
        native = strategy_of(plan)
    if Path(path).suffix == ".json":
        documents.save(native, path)
        return
    if plan.micro_batches > 1:
        raise InputError(
            f"{path}: FlexFlow's format cannot say {plan.micro_batches} micro-batches; write "
            "native JSON (a name that ends in .json)"
        )
    try:
        write_text_atomically(path, flexflow_text(graph, plan.strategy))
    except ValueError as error:
        raise InputError(f"{path}: {error}") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be written: {error.strerror}") from None
