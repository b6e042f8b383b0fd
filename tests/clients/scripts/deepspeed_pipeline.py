"""Trains a small model as a pipeline of DeepSpeed: its engine runs the micro-batches."""

import argparse
import json

import deepspeed
import torch
import torch.distributed as dist
from deepspeed.pipe import PipelineModule

STEPS, MICRO_BATCH, MICRO_BATCHES, WIDTH = 12, 4, 4, 128


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--output-dir", required=True)
    parser.add_argument("--dist-backend", default="topoopt")
    arguments = parser.parse_args()
    deepspeed.init_distributed(dist_backend=arguments.dist_backend, auto_mpi_discovery=False)
    torch.manual_seed(0)
    layers = [torch.nn.Linear(WIDTH, WIDTH) for _ in range(4)]
    stages = dist.get_world_size()
    module = PipelineModule(layers, num_stages=stages, loss_fn=torch.nn.functional.mse_loss)
    engine, *_ = deepspeed.initialize(
        model=module,
        optimizer=torch.optim.SGD(module.parameters(), lr=1e-2),
        config={
            "train_micro_batch_size_per_gpu": MICRO_BATCH,
            "gradient_accumulation_steps": MICRO_BATCHES,
        },
    )
    inputs = torch.randn(MICRO_BATCH, WIDTH)
    batches = iter([(inputs, inputs.sin())] * (STEPS * MICRO_BATCHES))
    losses = [engine.train_batch(batches).item() for _ in range(STEPS)]
    if dist.get_rank() == 0:
        with open(f"{arguments.output_dir}/losses.json", "w") as file:
            json.dump(losses, file)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
