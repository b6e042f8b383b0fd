"""The script that every rank of `topoopt bench` runs: measures cases, rank 0 prints the table."""

from __future__ import annotations

import argparse
import json
import os
import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

import torch_topoopt
from torch_topoopt.plan import Plan
from torch_topoopt.plan.given import PLAN_VARIABLE
from torch_topoopt.plan.result_json import plain
from torch_topoopt.tools.bench import table
from torch_topoopt.tools.bench.operations import (
    BOTH_WAYS,
    DATATYPES,
    IN_PLACE,
    REDUCE_OPS,
    REDUCING,
    Case,
)
from torch_topoopt.tools.bench.options import add_options, operations_of
from torch_topoopt.tools.bench.table import theory_bytes
from torch_topoopt.tools.bench.timing import GroupPeer, over_ranks, sizes, target_at

if TYPE_CHECKING:
    from collections.abc import Iterator


class CollectiveBench:
    """All cases, measured by one rank together with the others."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._rank, self._ranks = dist.get_rank(), dist.get_world_size()
        path = os.environ.get(PLAN_VARIABLE)
        plan = Plan.load(path) if path else None
        self._plan = plan if plan and plan.cluster.servers == self._ranks else None
        if not 0 <= options.root < self._ranks:
            raise ValueError(f"root: {options.root} is not a rank of 0..{self._ranks - 1}")
        self._target, self._hops = target_at(self._plan, self._ranks, options.root, options.hops)
        self._own = GroupPeer("topoopt", dist.group.WORLD, self._rank)
        self._peer = None
        if options.peer is not None:
            self._peer = GroupPeer(options.peer, dist.new_group(backend=options.peer), self._rank)
        self._before: dict[tuple[int, int], int] = {}  # bytes on links before timing
        self._after: dict[tuple[int, int], int] = {}
        self.lines: list[table.Line] = []
        self.links: list[table.LinkRow] = []

    def run(self) -> None:
        """Measures and prints."""
        if self._options.peer is not None:
            self._say(
                f"# {self._options.peer} does not use the planned links: it sends over the hosts' "
                "ordinary network, at that network's rate"
            )
        for operation in operations_of(self._options.operation):
            first = len(self.lines)
            self._say(f"# {operation}, {self._ranks} ranks")
            if operation == "sendrecv":
                self._say(
                    f"# from rank {self._options.root} to rank {self._target}, hops: {self._hops}"
                )
            for line in table.head(self._options.peer):
                self._say(line)
            for case in self._cases(operation):
                self._measure(case)
            for line in table.foot(self.lines[first:]):
                self._say(line)
        if self._rank == 0 and self._options.json_file is not None:
            self._save(Path(self._options.json_file))

    def _say(self, text: str) -> None:
        if self._rank == 0:
            print(text, flush=True)

    def _cases(self, operation: str) -> Iterator[Case]:
        options = self._options
        types = list(DATATYPES) if options.datatype == "all" else [options.datatype]
        ops = list(REDUCE_OPS) if options.op == "all" else [options.op]
        swept = list(
            sizes(options.minbytes, options.maxbytes, options.stepfactor, options.stepbytes)
        )
        for datatype in types:
            for reduce_op in ops if operation in REDUCING else ops[:1]:
                if reduce_op == "avg" and not DATATYPES[datatype].is_floating_point:
                    continue  # no such mean of whole numbers
                for size in [0] if operation == "barrier" else swept:
                    case = Case(
                        operation, size, datatype, reduce_op, options.root, self._target,
                        self._ranks,
                    )  # fmt: skip
                    yield case

    def _measure(self, case: Case) -> None:
        forms: dict[str, table.Timed] = {}
        peer: dict[str, table.Timed] = {}
        rows: list[table.LinkRow] = []
        if case.operation in IN_PLACE:
            wanted = {"in_place": False}  # PyTorch's form
        elif case.operation in BOTH_WAYS:
            wanted = {"out_of_place": False, "in_place": True}
        else:
            wanted = {"out_of_place": False}
        for form, in_place in wanted.items():
            forms[form] = self._timed(self._own, case, in_place)
            if self._options.links and not rows:
                rows = self._rows(case, forms[form].seconds)
            if self._peer is not None:
                peer[form] = self._timed(self._peer, case, in_place)
        self.lines.append(table.Line(case, forms, peer))
        self._say(self.lines[-1].text())
        if self._options.links:
            for line in table.link_lines(rows):
                self._say(line)
            self.links += rows

    def _timed(self, peer: GroupPeer, case: Case, in_place: bool) -> table.Timed:
        wrong = peer.wrong(case, in_place=in_place)
        self._before = self._sent() if self._options.links else {}
        seconds = peer.seconds(case, self._options.warmup_iters, self._options.iters)
        self._after = self._sent() if self._options.links else {}
        slowest = over_ranks([seconds], dist.ReduceOp.MAX)[0]
        total = round(over_ranks([float(wrong)], dist.ReduceOp.SUM)[0])
        return table.Timed(slowest, total if self._options.check else None)

    def _sent(self) -> dict[tuple[int, int], int]:
        """Bytes that this rank's server has sent so far, by target server."""
        found: dict[tuple[int, int], int] = {}
        for link in torch_topoopt.stats()["links"]:
            if link["source_port"] >= 0:
                ends = link["source"], link["target"]
                found[ends] = found.get(ends, 0) + link["sent_bytes"]
        return found

    def _rows(self, case: Case, seconds: float) -> list[table.LinkRow]:
        """The rows of all links for the last timed calls; their bytes include a barrier."""
        calls = self._options.iters + self._options.warmup_iters
        mine = {
            ends: (sent - self._before.get(ends, 0)) / calls for ends, sent in self._after.items()
        }
        gathered: list[Any] = [None] * self._ranks
        dist.all_gather_object(gathered, mine)
        theory, rates = {}, {}
        if self._plan is not None:
            theory = theory_bytes(self._plan, case) or {}
            rates = self._plan.cluster.pair_gbps(self._plan.network.links)
        return [
            table.LinkRow(
                case.operation,
                case.moved_bytes,
                ends[0],
                ends[1],
                sent,
                theory.get(ends) if theory else None,
                sent * 8 / seconds / 1e9,
                rates.get(ends) if self._options.limited else None,
            )
            for of_rank in gathered
            for ends, sent in sorted(of_rank.items())
        ]

    def _save(self, path: Path) -> None:
        kept = {k: v for k, v in vars(self._options).items() if k != "json_file"}
        results = table.BenchResults(
            str(torch.__version__), self._ranks, kept, self.lines, self.links
        )
        path.write_text(json.dumps(plain(results), indent=1) + "\n", encoding="utf-8")


def main() -> int:
    """Exit code 1 where a result was wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("operation")
    parser.add_argument("--limited", action="store_true", help="links have the plan's rate")
    add_options(parser)
    options = parser.parse_args()
    torch.set_num_threads(1)
    # torch 2.13 renamed all_gather_into_tensor; 2.11 has only that name.
    warnings.filterwarnings("ignore", "`torch.distributed", FutureWarning)
    dist.init_process_group("topoopt")
    try:
        bench = CollectiveBench(options)
    except ValueError as error:
        if dist.get_rank() == 0:
            print(f"topoopt bench: error: {error}", file=sys.stderr)
        dist.destroy_process_group()
        return 2
    bench.run()
    dist.destroy_process_group()
    return 1 if table.summary(bench.lines)[0] else 0


if __name__ == "__main__":
    sys.exit(main())
