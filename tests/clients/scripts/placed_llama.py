"""Trains a small Llama of transformers as its job's plan says, or with --alone in one process."""

import argparse
import json
import os

import torch
import torch.distributed as dist
from transformers import LlamaConfig, LlamaForCausalLM

import torch_topoopt

BATCH, LENGTH, WORDS, STEPS = 16, 8, 2000, 12


def build_model() -> torch.nn.Module:
    torch.manual_seed(0)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=WORDS,
            hidden_size=64,
            intermediate_size=128,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            use_cache=False,
        )
    )


def example_batch(batch_size: int = BATCH) -> dict[str, torch.Tensor]:
    return {"input_ids": torch.zeros(batch_size, LENGTH, dtype=torch.long)}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--output-dir", required=True)
    parser.add_argument("--alone", action="store_true")
    arguments = parser.parse_args()
    rank, ranks, model = 0, 1, build_model()
    if not arguments.alone:
        dist.init_process_group()
        rank, ranks = dist.get_rank(), dist.get_world_size()
        model = torch_topoopt.parallelize(model, example_batch())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    losses = []
    for step in range(STEPS):
        generator = torch.Generator().manual_seed(step)
        words = torch.randint(0, WORDS, (BATCH, LENGTH), generator=generator) // 50 * 50
        share = words.chunk(ranks)[rank]
        logits = model(input_ids=share).logits[:, :-1]
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), share[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        mean = loss.detach() / ranks
        if not arguments.alone:
            dist.all_reduce(mean)
        losses.append(float(mean))
    if rank == 0:
        with open(os.path.join(arguments.output_dir, "losses.json"), "w") as file:
            json.dump(losses, file)
    if not arguments.alone:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
