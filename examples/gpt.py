"""Trains a small GPT on text, character by character, data parallel over all ranks.

    topoopt run --servers 4 --degree 2 examples/gpt.py                  # on README.md and docs/
    topoopt run --servers 4 --degree 2 examples/gpt.py --text BOOK.txt  # on a text of yours
    topoopt run --servers 4 --degree 2 examples/gpt.py --shard          # FSDP2 in place of DDP
    torchrun --nproc-per-node 4 examples/gpt.py                         # on PyTorch's own backend

Plain PyTorch: nothing here depends on the backend. At the end rank 0 writes some text of its own.
"""

import argparse
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.functional import cross_entropy, scaled_dot_product_attention
from torch.nn.parallel import DistributedDataParallel

import torch_topoopt

CHARACTERS = 128  # ASCII; any other character is read as "?"
CONTEXT = 64  # characters that a prediction sees
WIDTH, HEADS, LAYERS = 128, 4, 4


class Block(nn.Module):
    """Causal self-attention and two linear layers, each after a norm and beside a residual."""

    def __init__(self) -> None:
        super().__init__()
        self.norm_attention, self.norm_linear = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.inputs = nn.Linear(WIDTH, 3 * WIDTH)  # queries, keys and values of all heads
        self.outputs = nn.Linear(WIDTH, WIDTH)
        self.linear = nn.Sequential(
            nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(batch, context, width) to the same."""
        batch, context, _ = x.shape
        heads = self.inputs(self.norm_attention(x)).view(batch, context, 3, HEADS, WIDTH // HEADS)
        query, key, value = heads.permute(2, 0, 3, 1, 4)
        attention = scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.outputs(attention.transpose(1, 2).reshape(batch, context, WIDTH))
        return x + self.linear(self.norm_linear(x))


class GPT(nn.Module):
    """Characters as numbers, (batch, context), to scores of the next one of each."""

    def __init__(self) -> None:
        super().__init__()
        self.characters = nn.Embedding(CHARACTERS, WIDTH)
        self.positions = nn.Parameter(torch.zeros(CONTEXT, WIDTH))
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.norm, self.scores = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, CHARACTERS)

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        x = self.characters(text) + self.positions[: text.shape[1]]
        return self.scores(self.norm(self.blocks(x)))


def build_model() -> nn.Module:
    """What `topoopt run` plans for."""
    return GPT()


def example_batch(batch_size: int = 64) -> torch.Tensor:
    return torch.zeros(batch_size, CONTEXT, dtype=torch.long)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--text", type=Path, nargs="+", help="files (default: README.md and docs/)")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch-size", type=int, default=64, help="samples of all ranks together")
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--shard", action="store_true", help="shard the parameters (FSDP2)")
    return parser.parse_args()


def read_text(files: list[Path] | None) -> torch.Tensor:
    """All files as numbers of characters, one after the other."""
    root = Path(__file__).parent.parent
    files = files or [root / "README.md", *sorted(root.glob("docs/**/*.md"))]
    text = "".join(file.read_text(encoding="utf-8") for file in files)
    if len(text) <= CONTEXT:
        raise SystemExit(f"text: {len(text)} characters; more than {CONTEXT} are needed")
    return torch.tensor(list(text.encode("ascii", "replace")))


def batch_of(text: torch.Tensor, size: int, generator: torch.Generator) -> torch.Tensor:
    """Random pieces of the text, (size, CONTEXT + 1)."""
    begins = torch.randint(len(text) - CONTEXT, (size, 1), generator=generator)
    return text[begins + torch.arange(CONTEXT + 1)]


@torch.no_grad()
def continued(model: nn.Module, text: str, count: int, generator: torch.Generator) -> str:
    """`text` and `count` characters more, drawn as the model expects them."""
    numbers = torch.tensor([list(text.encode("ascii"))])
    for _ in range(count):
        chances = model(numbers[:, -CONTEXT:])[0, -1].softmax(0)
        drawn = torch.multinomial(chances, 1, generator=generator)
        numbers = torch.cat((numbers, drawn[None]), dim=1)
    return bytes(numbers[0].tolist()).decode("ascii", "replace")


def main() -> None:
    arguments = parse_arguments()
    dist.init_process_group()
    rank, ranks = dist.get_rank(), dist.get_world_size()
    if arguments.batch_size < ranks:
        raise SystemExit(f"batch-size: {arguments.batch_size} is less than {ranks} ranks")
    torch.manual_seed(arguments.seed)
    gpt = GPT()
    if arguments.shard:
        for block in gpt.blocks:
            fully_shard(block)
    model = fully_shard(gpt) if arguments.shard else DistributedDataParallel(gpt)
    optimizer = torch.optim.AdamW(model.parameters(), lr=arguments.lr)
    text = read_text(arguments.text)
    own = torch.Generator().manual_seed(arguments.seed * ranks + rank)  # other pieces on each rank
    share = arguments.batch_size // ranks
    started = time.perf_counter()
    for step in range(1, arguments.steps + 1):
        batch = batch_of(text, share, own)
        scores = model(batch[:, :-1])
        loss = cross_entropy(scores.flatten(0, 1), batch[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 0 and (step % 20 == 0 or step == arguments.steps):
            elapsed_s = time.perf_counter() - started
            torch_topoopt.log(steps=step, loss=loss.item(), elapsed_s=elapsed_s)
            print(f"step {step}: loss {loss.item():.3f}, {elapsed_s:.1f} s", flush=True)
    if arguments.shard:
        model.set_reshard_after_forward(False)  # its parameters are gathered for the first only
    if rank == 0 or arguments.shard:  # by all ranks
        written = continued(gpt, "The ", 200, own)
        if rank == 0:
            print(written)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
