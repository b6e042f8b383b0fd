"""Trains a small Llama on synthetic text, divided as its job's plan says.

    topoopt run --servers 4 --degree 2 --bandwidth 50Mbps \\
        --layout sharding=parameters,micro_batch=8 examples/llama.py
    topoopt run --servers 4 --degree 2 --bandwidth 50Mbps \\
        --layout tensor=2,pipeline=2,micro_batch=2 examples/llama.py

It is the script of one process: `torch_topoopt.pipeline` divides the model and its steps. In the
text, each token follows from the one before by a hidden table.
"""

import argparse

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy

import torch_topoopt
from torch_topoopt.models.llama import Llama, LlamaSize

BATCH = 32  # sequences of an iteration
SIZE = LlamaSize(4, 128, 256, 8, 4, 256, 64, BATCH, dtype=torch.float32)


def build_model() -> torch.nn.Module:
    return Llama(SIZE)


def example_batch(batch_size: int = BATCH) -> torch.Tensor:
    return torch.zeros(batch_size, SIZE.sequence, dtype=torch.long)


def loss_of(logits: torch.Tensor, following: torch.Tensor) -> torch.Tensor:
    return cross_entropy(logits.flatten(0, 1), following.flatten())


def text(samples: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens, and the one that follows each."""
    table = torch.randperm(SIZE.vocabulary, generator=torch.Generator().manual_seed(0))
    generator = torch.Generator().manual_seed(seed)
    tokens = [torch.randint(0, SIZE.vocabulary, (samples,), generator=generator)]
    for _ in range(SIZE.sequence):
        tokens.append(table[tokens[-1]])
    whole = torch.stack(tokens, dim=1)
    return whole[:, :-1].contiguous(), whole[:, 1:].contiguous()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=40)
    steps = parser.parse_args().steps
    dist.init_process_group()
    torch.manual_seed(0)
    pipe = torch_topoopt.pipeline(build_model(), example_batch(), loss_of)
    optimizer = torch.optim.AdamW(pipe.parameters(), lr=3e-3)
    for step in range(1, steps + 1):
        tokens, following = (t.chunk(pipe.replicas)[pipe.replica] for t in text(BATCH, step))
        optimizer.zero_grad()
        loss = pipe.step(tokens, following)
        pipe.clip_grad_norm_(1.0)
        optimizer.step()
        if step % 10 == 0 and dist.get_rank() == dist.get_world_size() - 1:  # of the last stage
            torch_topoopt.log(step=step, loss=loss.item())
            print(f"step {step:4}  loss {loss:.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
