"""Trains a small model with DeepSpeed, as its users write it: a file configures the engine."""

import argparse
import json

import deepspeed
import torch
import torch.distributed as dist


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--output-dir", required=True)
    parser.add_argument("--config", required=True)
    parser.add_argument("--dist-backend", default="topoopt")
    arguments = parser.parse_args()
    deepspeed.init_distributed(dist_backend=arguments.dist_backend, auto_mpi_discovery=False)
    with open(arguments.config) as file:
        config = json.load(file)
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.Tanh(), torch.nn.Linear(512, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
    torch.manual_seed(dist.get_rank())
    losses = []
    for _ in range(8 * engine.gradient_accumulation_steps()):
        inputs = torch.randn(engine.train_micro_batch_size_per_gpu(), 256)
        loss = torch.nn.functional.mse_loss(engine(inputs), inputs.sum(1, keepdim=True))
        engine.backward(loss)
        engine.step()
        losses.append(loss.item())
    if dist.get_rank() == 0:
        with open(f"{arguments.output_dir}/losses.json", "w") as file:
            json.dump(losses, file)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
