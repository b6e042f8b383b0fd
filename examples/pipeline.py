"""Trains a small GPT on sequences made from a seed, in the stages of its job's plan.

    topoopt run --servers 8 --degree 6 --bandwidth 2Mbps --strategy-space pipeline --stages 2 \\
        examples/pipeline.py
    topoopt run --servers 8 --degree 6 --bandwidth 2Mbps examples/pipeline.py    # data parallel

A hidden table says which token follows which; one in ten follows by chance. One line follows the
plan, `torch_topoopt.pipeline`; every copy of the model trains on its share of each batch.
"""

import argparse
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy, gelu, scaled_dot_product_attention

import torch_topoopt

TOKENS, LENGTH, WIDTH, HEADS, BLOCKS = 32, 16, 64, 4, 2
BATCH = 256  # sequences of all ranks together


class Block(nn.Module):
    """Attention to what came before, then a hidden layer, each beside a shortcut."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.mix, self.join = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        samples, length, _ = x.shape
        mixed = self.mix(self.norm1(x)).view(samples, length, 3, HEADS, WIDTH // HEADS)
        q, k, v = mixed.permute(2, 0, 3, 1, 4)
        seen = scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.join(seen.transpose(1, 2).reshape(samples, length, WIDTH))
        return x + self.down(gelu(self.up(self.norm2(x))))


class GPT(nn.Module):
    """Tokens [samples, length] to logits [samples, length, TOKENS] of what follows each."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(TOKENS, WIDTH)
        self.position = nn.Parameter(torch.randn(LENGTH, WIDTH) / 10)
        self.blocks = nn.ModuleList(Block() for _ in range(BLOCKS))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, TOKENS)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens) + self.position
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def build_model() -> nn.Module:
    return GPT()


def example_batch(batch_size: int = BATCH) -> torch.Tensor:
    return torch.zeros(batch_size, LENGTH, dtype=torch.long)


def loss_of(logits: torch.Tensor, following: torch.Tensor) -> torch.Tensor:
    return cross_entropy(logits.flatten(0, 1), following.flatten())


class Sequences:
    """Sequences of a world that `seed` describes."""

    def __init__(self, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.table = torch.randperm(TOKENS, generator=generator)

    def batch(self, samples: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Tokens [samples, LENGTH], and what follows each of them."""
        generator = torch.Generator().manual_seed(seed)
        chance = torch.randint(0, TOKENS, (samples, LENGTH + 1), generator=generator)
        by_chance = torch.rand(samples, LENGTH + 1, generator=generator) < 0.1
        tokens = [chance[:, 0]]
        for i in range(1, LENGTH + 1):
            tokens.append(torch.where(by_chance[:, i], chance[:, i], self.table[tokens[-1]]))
        whole = torch.stack(tokens, dim=1)
        return whole[:, :-1].contiguous(), whole[:, 1:].contiguous()


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--batch-size", type=int, default=BATCH, help="sequences of all ranks")
    parser.add_argument("--target-accuracy", type=float, default=0.0)
    parser.add_argument("--lr", type=float, default=1e-2)
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def main() -> int:
    arguments = parse_arguments()
    dist.init_process_group()
    torch.manual_seed(arguments.seed)
    pipe = torch_topoopt.pipeline(build_model(), example_batch(), loss_of)
    optimizer = torch.optim.Adam(pipe.parameters(), lr=arguments.lr)

    world = Sequences(arguments.seed)
    reports = pipe.stage == pipe.stages - 1 and pipe.replica == 0  # it has loss and output
    score = 0.0
    for step in range(1, arguments.steps + 1):
        whole = world.batch(arguments.batch_size, seed=step)
        tokens, following = (tensor.chunk(pipe.replicas)[pipe.replica] for tensor in whole)
        optimizer.zero_grad()
        loss = pipe.step(tokens, following)
        optimizer.step()
        if step % 20 and step != arguments.steps:
            continue
        tokens, following = world.batch(64, seed=0)  # not among those that it is trained with
        logits = pipe.evaluate(tokens)
        if reports:
            score = (logits.argmax(2) == following).float().mean().item()
            print(f"step {step:4}  loss {loss:.4f}  test accuracy {score:.3f}", flush=True)
            torch_topoopt.log(step=step, loss=loss.item(), test_accuracy=score, steps=step)
    dist.destroy_process_group()
    return 0 if score >= arguments.target_accuracy or not reports else 1


if __name__ == "__main__":
    sys.exit(main())
