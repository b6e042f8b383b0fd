"""Trains a small model with accelerate, as its users write it: the environment configures it."""

import argparse
import json

import torch
from accelerate import Accelerator


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--output-dir", required=True)
    parser.add_argument("--batch-size", type=int, default=2)
    arguments = parser.parse_args()
    accelerator = Accelerator(cpu=True)
    torch.manual_seed(0)
    inputs = torch.randn(96, 16)
    data = torch.utils.data.TensorDataset(inputs, inputs.sum(1, keepdim=True))
    model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    loader = torch.utils.data.DataLoader(data, batch_size=arguments.batch_size)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    losses, steps = [], 0
    for features, targets in loader:
        with accelerator.accumulate(model):
            loss = torch.nn.functional.mse_loss(model(features), targets)
            accelerator.backward(loss)
            steps += accelerator.sync_gradients
            optimizer.step()
            optimizer.zero_grad()
        losses.append(accelerator.gather(loss.detach()).mean().item())
    if accelerator.is_main_process:
        with open(f"{arguments.output_dir}/losses.json", "w") as file:
            json.dump([*losses, float(steps)], file)


if __name__ == "__main__":
    main()
