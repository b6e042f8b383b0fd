"""Fits a small network with Ray Train, as its users write it."""

import argparse
import json
from typing import Any

import ray
import ray.train
import torch
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer, prepare_data_loader, prepare_model
from torch import nn


def train_loop(config: dict[str, Any]) -> None:
    torch.manual_seed(0)
    inputs = torch.randn(64, 8)
    data = torch.utils.data.TensorDataset(inputs, inputs.sum(dim=1, keepdim=True))
    loader = prepare_data_loader(torch.utils.data.DataLoader(data, batch_size=8))
    model = prepare_model(nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1)))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    losses = []
    for inputs, targets in loader:
        loss = nn.functional.mse_loss(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    if ray.train.get_context().get_world_rank() == 0:
        with open(f"{config['output_dir']}/losses.json", "w") as file:
            json.dump([*losses, sum(p.sum().item() for p in model.parameters())], file)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--dist-backend", default="gloo")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--output-dir", required=True)
    arguments = parser.parse_args()
    ray.init(num_cpus=arguments.workers, include_dashboard=False)
    trainer = TorchTrainer(
        train_loop,
        train_loop_config={"output_dir": arguments.output_dir},
        torch_config=TorchConfig(backend=arguments.dist_backend),
        scaling_config=ScalingConfig(num_workers=arguments.workers),
        run_config=RunConfig(storage_path=arguments.output_dir),
    )
    trainer.fit()
    ray.shutdown()


if __name__ == "__main__":
    main()
