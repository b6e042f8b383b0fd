"""Predicted against measured training steps of language models.

    python benchmarks/measured_steps.py --rows FILE.csv --json

Each row of the file is one measurement: the model's shape, the accelerators, the layout and the
step. Columns are named as in `_NEEDED` and `_Row`; others are ignored. A row that does not say
enough is listed with its reason. Errors and rankings are explained in harness/step_errors.py.
`--failed` takes layouts of the same models that gave no number, with the columns of
llm-steps-failed.csv.

Software follows from the source: compiled kernels for NVIDIA's frameworks and where the notes say
so, else PyTorch without compilation.
"""

from __future__ import annotations

import argparse
import csv
import json
import re
import sys
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from harness import step_errors
from torch_topoopt.models import gpt, llama, mixtral, qwen3_moe
from torch_topoopt.plan.layout import Layout
from torch_topoopt.profile.profiling import profile
from torch_topoopt.profile.repeated_layers import with_occurrences
from torch_topoopt.search.accelerators import DEVICES, accelerator
from torch_topoopt.search.accelerators.attention import KERNELS
from torch_topoopt.search.layouts.links import Boxes
from torch_topoopt.search.layouts.memory import memory_of_stage, usable_bytes
from torch_topoopt.search.layouts.prices import LayoutPrice, LayoutPrices
from torch_topoopt.search.layouts.software import COMPILED, EAGER, MEGATRON, NANOTRON
from torch_topoopt.search.layouts.stages import least_longest
from torch_topoopt.search.layouts.state import StateBytes
from torch_topoopt.search.optimizers import OPTIMIZERS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch_topoopt.op_graph import OpGraph
    from torch_topoopt.search.layouts.memory import StepMemory
    from torch_topoopt.search.layouts.software import Software

_NEEDED = (
    *("layers", "hidden", "ffn", "heads", "vocabulary", "sequence", "gpus", "gpu"),
    *("tp", "pp", "micro_batch", "global_batch_sequences"),
)
_BYTES_PER_GBPS = 1e9 / 8
_PORT_GBPS = 400.0  # of one accelerator, if the row has no rate between boxes


class NotStatedError(ValueError):
    """Why a row cannot be predicted."""


@dataclass(frozen=True)
class Result:
    """The prediction of row `row` of the file, from 0 on; `reason`: why there is none.

    `memory_gib` is what PyTorch allocates on the accelerator that the source measured, else on the
    fullest one. `fits`: every accelerator has enough memory; None if recomputation is not stated.
    """

    row: int
    predicted_step_seconds: float | None = None
    measured_step_seconds: float | None = None
    ratio: float | None = None
    memory_gib: float | None = None
    fits: bool | None = None
    reason: str | None = None


class _Row:
    """A row by the names of its columns."""

    def __init__(self, cells: dict[str, str]) -> None:
        self.cells = cells
        missing = [name for name in _NEEDED if not cells.get(name)]
        if missing:
            raise NotStatedError(f"does not state {', '.join(missing)}")

    def text(self, name: str) -> str:
        return (self.cells.get(name) or "").strip().lower()

    def whole(self, name: str, default: int = 1) -> int:
        text = self.text(name)
        return int(float(text)) if text else default

    def number(self, name: str) -> float | None:
        text = self.text(name)
        return float(text) if text else None


def device_of(row: _Row) -> str:
    """The name of the accelerator and its format, as `topoopt --accelerator` takes it."""
    gpu, precision = row.text("gpu"), row.text("precision")
    name = re.sub(r"[^a-z0-9]+", "-", gpu)
    names = sorted(DEVICES, key=len, reverse=True)
    found = next((known for known in names if known in name), None)
    if "a100" in name and "40gb" in name:
        found = "a100-40gb"
    if "h100" in name and ("96gb" in name or "500w" in name):
        found = "h100-500w"
    if found is None:
        raise NotStatedError(f"gpu: no data sheet of {row.cells['gpu']!r}")
    if "4-bit" in precision or "lora" in row.text("model"):
        raise NotStatedError("model: the rank of its adapters is not stated")
    if "offload" in row.text("model"):
        raise NotStatedError("model: what is offloaded is not stated")
    wanted = "bf16"
    if "fp4" in precision:
        wanted = "fp4"
    elif "fp8" in precision or "float8" in precision:
        wanted = "fp8"
    if wanted not in DEVICES[found].formats():
        wanted = "bf16"
    return f"{found}:{wanted}"


def layout_of(row: _Row) -> Layout:
    """The layout of a row; raises NotStatedError where its numbers do not fit each other."""
    tensor, pipeline, context = row.whole("tp"), row.whole("pp"), row.whole("cp")
    gpus, micro_batch = row.whole("gpus"), row.whole("micro_batch")
    data = gpus // (tensor * pipeline * context)
    batch = row.whole("global_batch_sequences")
    if data < 1 or batch % (data * micro_batch):
        raise NotStatedError(
            f"a batch of {batch} is no multiple of {data} x {micro_batch} sequences"
        )
    count = batch // (data * micro_batch)
    interleave = row.whole("vp")
    if pipeline == 1 or count % pipeline:
        interleave = 1
    state = row.text("zero_or_fsdp")
    sharding = "none"
    if "zero-2" in state:
        sharding = "gradients"
    elif "zero-1" in state or "distributed optimizer" in state:
        sharding = "optimizer"
    elif "fsdp" in state or "zero-3" in state or "hsdp" in state:
        sharding = "parameters"
    copies = data * context
    shards = copies
    if "hsdp" in state:
        shards = min(copies, row.whole("gpus_per_node", 8))
    stated = re.search(r"x(\d+)", state)
    if stated and copies % int(stated[1]) == 0:
        shards = int(stated[1])
    if shards == 1 or sharding == "none":
        sharding, shards = "none", 1
    recompute = (row.text("recompute").split() or ["none"])[0]
    return Layout(
        tensor,
        context,
        data,
        row.whole("ep"),
        pipeline,
        interleave,
        sharding,  # type: ignore[arg-type]
        shards,
        reshard="grad_op" not in state,
        recompute=recompute if recompute in ("full", "selective") else "none",  # type: ignore[arg-type]
        schedule="interleaved" if interleave > 1 else "1f1b",
        micro_batch=micro_batch,
        micro_batches=count,
    ).validate()


def attention_of(row: _Row, device: str) -> str:
    """The attention kernel of the source, empty for PyTorch's of today.

    llm-foundry's is in Triton; others than NVIDIA's measured before 2025, with FlashAttention-2.
    """
    source = row.text("source")
    kernels = KERNELS[DEVICES[device.partition(":")[0]].generation]
    wanted = "triton" if "llm-foundry" in source else "flash2"
    return wanted if wanted in kernels and "nvidia" not in source else ""


def software_of(row: _Row) -> Software:
    """How the source trains."""
    source = row.text("source")
    if "nanotron" in source:
        return NANOTRON
    if "nvidia" in source or "megatron" in source:
        return MEGATRON
    if "llm-foundry" in source:
        return LLM_FOUNDRY
    compiled = re.search(r"compile(?! off)", row.text("notes"))
    return COMPILED if compiled else EAGER


# its loss (flash-attention's) writes the gradients over the logits
LLM_FOUNDRY = replace(EAGER, loss_outputs=2.0)


def optimizer_of(row: _Row) -> str:
    """The optimizer of the source, and the type in which it sums gradients.

    torchtune and the GB10 sweep train BF16 weights alone. NVIDIA's frameworks sum in FP32, but the
    benchmarks of Megatron-Bridge do not.
    """
    source, notes = row.text("source"), row.text("notes")
    if "8-bit adamw" in notes:
        return "adam8bit"
    if "torchtune" in source or "gb10 sweep" in source:
        return "adamw-bf16"
    fp32 = "nvidia" in source and "bridge" not in source
    return "adamw-fp32-gradients" if fp32 or "fp32" in row.text("precision") else "adamw"


@cache
def graph_of(  # parameters: the columns of a shape
    model: str,
    layers: int,
    hidden: int,
    ffn: int,
    heads: int,
    kv_heads: int,
    vocabulary: int,
    sequence: int,
    *,
    parameters_b: float | None,
) -> OpGraph:
    """The OpGraph of a model of that shape, for one sequence in BF16.

    Whether its MLP has a gate and its embedding is shared follows from the parameters, if stated.
    """
    mixture = _mixture_of(model)
    head = 128 if "qwen3" in model else 0
    gated, tied = _variant(layers, hidden, ffn, heads, kv_heads, vocabulary, parameters_b)
    with torch.device("meta"):
        if mixture is not None:
            mixture = replace(mixture, blocks=2, sequence=sequence)
            return _profiled(llama.Llama(mixture), model, sequence, layers)
        if gated:
            one = llama.LlamaSize(
                *(2, hidden, ffn, heads, kv_heads, vocabulary, sequence, 1), head=head, tied=tied
            )
            return _profiled(llama.Llama(one), model, sequence, layers)
        made = gpt.GPT(gpt.GPTSize(2, hidden, heads, sequence, vocabulary, 1)).bfloat16()
        if tied:
            made.head.weight = made.embedding.tokens.weight
        return _profiled(made, model, sequence, layers)


# Published mixtures (their configurations of transformers) in the form of Qwen3-MoE. Each token
# goes to one expert more in place of the shared one, and 8 heads of keys and values have nearly
# the parameters of latent attention. The first layers, which have no experts, count as the others.
_DEEPSEEK_V3 = qwen3_moe.Qwen3MoESize(
    *(61, 7168, 2048, 128, 8, 129280, 4096, 1), head=128, experts=256, top=9, norms=False
)
_PUBLISHED = {
    ("deepseek", "v3"): _DEEPSEEK_V3,
    ("kimi", "k2"): replace(_DEEPSEEK_V3, heads=64, vocabulary=163840, experts=384),
    ("gpt", "oss", "120b"): qwen3_moe.Qwen3MoESize(
        *(36, 2880, 2880, 64, 8, 201088, 4096, 1), head=64, experts=128, top=4, norms=False
    ),
}


def _mixture_of(model: str) -> llama.LlamaSize | None:
    """The shipped mixture of experts of that name; experts have no column of their own."""
    known = {
        ("qwen3", "30b"): qwen3_moe.SIZES["30b-a3b"],
        ("qwen3", "235b"): qwen3_moe.SIZES["235b-a22b"],
        ("mixtral", "8x7b"): mixtral.SIZES["8x7b"],
        **_PUBLISHED,
    }
    for words, size in known.items():
        if all(word in model for word in words):
            return size
    mixtures = ("moe", "deepseek", "oss", "kimi", "8x", "-a3b", "_a3b")
    if any(word in model for word in mixtures):
        raise NotStatedError("model: the number of its experts is not stated")
    return None


def _variant(  # parameters: the columns of a shape
    layers: int,
    hidden: int,
    ffn: int,
    heads: int,
    kv_heads: int,
    vocabulary: int,
    parameters_b: float | None,
) -> tuple[bool, bool]:
    """(whether the MLP has a gate, whether the output layer shares the embedding)."""
    attention = hidden * hidden * (2 + 2 * kv_heads / heads)

    def billions(gated: bool, tied: bool) -> float:
        mlp = hidden * ffn * (3 if gated else 2)
        return (layers * (attention + mlp) + vocabulary * hidden * (1 if tied else 2)) / 1e9

    wanted = parameters_b or billions(True, False)
    ways = ((True, False), (True, True), (False, True), (False, False))
    return min(ways, key=lambda way: abs(billions(*way) - wanted))


def _profiled(module: torch.nn.Module, name: str, sequence: int, layers: int) -> OpGraph:
    tokens = torch.zeros(1, sequence, dtype=torch.long)
    return with_occurrences(profile(module, tokens, name=name), layers)


def greedy(seconds: Sequence[float], chunks: int) -> tuple[int, ...] | None:
    """nanotron's pipeline: a stage takes blocks until it has its share of the whole."""
    share = sum(seconds) / chunks
    cuts: list[int] = []
    held = 0.0
    for i, one in enumerate(seconds):
        left = len(seconds) - i  # cells, of which each later stage needs one
        if i and len(cuts) < chunks - 1 and (held >= share or left < chunks - len(cuts)):
            cuts.append(i)
            held = 0.0
        held += one
    return tuple(cuts) if len(cuts) == chunks - 1 else None


@cache
def _prices(
    graph: int, device: str, boxes: Boxes, software: Software, state: StateBytes
) -> LayoutPrices:
    name, _, kernel = device.partition("/")
    found = accelerator(name, kernel or None)  # type: ignore[arg-type]
    cut = greedy if software is NANOTRON else least_longest
    return LayoutPrices(_GRAPHS[graph], found, boxes, software=software, state=state, cut=cut)


_GRAPHS: dict[int, OpGraph] = {}


def predicted(row: _Row) -> tuple[LayoutPrice, StepMemory]:
    """The price of a row's layout, and the memory of the accelerator that the source measured;
    raises ValueError where the row does not state enough."""
    shape = [row.whole(name) for name in ("layers", "hidden", "ffn", "heads")]
    heads = row.whole("kv_heads", row.whole("heads"))
    others = [row.whole(name) for name in ("vocabulary", "sequence")]
    graph = graph_of(
        row.text("model"), *shape, heads, *others, parameters_b=row.number("parameters_b")
    )
    _GRAPHS[id(graph)] = graph
    device = device_of(row)
    peer = accelerator(device).peer_bytes_per_s
    per_box = min(row.whole("gpus_per_node", 8), row.whole("gpus"))
    rate = row.number("interconnect_gbps_per_node") or _PORT_GBPS * per_box
    boxes = Boxes(per_box, peer, rate * _BYTES_PER_GBPS, flat_rings=True)  # NCCL's
    kernel = attention_of(row, device)
    if kernel:
        device += f"/{kernel}"
    software, state = software_of(row), StateBytes.of(OPTIMIZERS[optimizer_of(row)])
    price = _prices(id(graph), device, boxes, software, state).price(layout_of(row))
    if price is None:
        raise NotStatedError("the model cannot be divided so")
    memory = price.memory
    if software is NANOTRON:  # it prints the memory of rank 0
        memory = memory_of_stage(price.layout, price.stages[0], 0, state, software)
    return price, memory


def result_of(index: int, cells: dict[str, str]) -> Result:
    """The prediction of one row."""
    try:
        row = _Row(cells)
        price, memory = predicted(row)
    except ValueError as error:
        return Result(index, reason=str(error))
    step_s, measured = price.times.step_s, row.number("step_seconds")
    fits = None
    if row.text("recompute") not in ("", "not stated"):
        fits = price.memory.total <= usable_bytes(accelerator(device_of(row)))
    return Result(
        index,
        step_s,
        measured,
        step_s / measured if measured else None,
        memory.allocated / 2**30,
        fits,
    )


def _pairs(rows: Sequence[dict[str, str]], results: Sequence[Result]) -> list[step_errors.Pair]:
    return [
        step_errors.Pair(
            rows[result.row],
            result.predicted_step_seconds,
            result.measured_step_seconds,
            result.memory_gib or 0.0,
            float(rows[result.row].get("memory_gib") or 0) or None,
        )
        for result in results
        if result.predicted_step_seconds and result.measured_step_seconds
    ]


def failed_rows(
    failed: Sequence[dict[str, str]], rows: Sequence[dict[str, str]]
) -> list[dict[str, str]]:
    """Failed layouts as rows, with the other columns of a measured row of their model."""
    known = {cells["model"]: cells for cells in reversed(rows)}
    found = []
    for cells in failed:
        sequences = int(cells["dp"]) * int(cells["micro_batch"]) * int(cells["grad_accum"])
        layout = {name: cells[name] for name in ("gpus", "micro_batch", "dp", "tp", "pp")}
        layout["zero_or_fsdp"] = f"ZeRO-{cells['zero_stage']}"
        layout["global_batch_sequences"] = str(sequences)
        found.append({**known[cells["model"]], **layout, "step_seconds": "", "notes": ""})
    return found


def _read(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--rows", required=True, type=Path, metavar="FILE.csv")
    options.add_argument("--failed", type=Path, metavar="FILE.csv", help="layouts without a number")
    options.add_argument("--json", action="store_true", help="print one JSON object")
    chosen = options.parse_args()
    rows = _read(chosen.rows)
    results = [result_of(index, cells) for index, cells in enumerate(rows)]
    pairs = _pairs(rows, results)
    calm = [pair for pair in pairs if step_errors.is_undisturbed(pair.cells)]
    ranks = step_errors.rankings(pairs)
    summary = {
        **step_errors.figures(pairs),
        "undisturbed": step_errors.figures(calm),
        "rankings": {name: ranking.predicted for name, ranking in ranks.items()},
        "rankings_of_repeats": {name: ranking.repeated for name, ranking in ranks.items()},
        "chosen_over_fastest": {name: ranking.chosen for name, ranking in ranks.items()},
    }
    ran = [result.fits for result in results if result.measured_step_seconds]
    summary["ran_but_predicted_not_to_fit"] = ran.count(False)
    if chosen.failed:
        failed = failed_rows(_read(chosen.failed), rows)
        fits = [result_of(index, cells).fits for index, cells in enumerate(failed)]
        summary["failed"] = len(fits) - fits.count(None)
        summary["failed_but_predicted_to_fit"] = fits.count(True)
    if chosen.json:
        print(json.dumps({"rows": [asdict(result) for result in results], **summary}))
        return 0
    for result in results:
        if result.reason is not None:
            print(f"row {result.row}: {result.reason}")
    print(step_errors.table(pairs))
    print(step_errors.table_of_rankings(ranks, step_errors.rankings(calm)))
    print(step_errors.verdict(summary, ranks, step_errors.rankings(calm)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
