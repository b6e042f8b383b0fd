"""Trains a tiny Llama with accelerate, whose environment says how it is sharded."""

import argparse
import json

import cpu_accelerator
import torch
from accelerate import Accelerator
from transformers import LlamaConfig, LlamaForCausalLM

WORDS, LENGTH, STEPS = 100, 16, 8


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--output-dir", required=True)
    parser.add_argument("--batch-size", type=int, default=2)
    arguments = parser.parse_args()
    cpu_accelerator.use()
    accelerator = Accelerator()
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=WORDS,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
    )
    model = LlamaForCausalLM(config)
    words = torch.randint(
        0, WORDS, (STEPS * accelerator.num_processes * arguments.batch_size, LENGTH)
    )
    loader = torch.utils.data.DataLoader(words, batch_size=arguments.batch_size)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    losses = []
    for batch in loader:
        with accelerator.accumulate(model):
            loss = model(input_ids=batch, labels=batch).loss
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        losses.append(accelerator.gather(loss.detach()).mean().item())
    if accelerator.is_main_process:
        with open(f"{arguments.output_dir}/losses.json", "w") as file:
            json.dump(losses, file)
    accelerator.end_training()


if __name__ == "__main__":
    main()
