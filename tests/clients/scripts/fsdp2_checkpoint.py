"""Trains with FSDP2 on a mesh of one or two dimensions, from a distributed checkpoint if there is
one, and leaves one."""

import argparse
import json
import os

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--output-dir", required=True)
    parser.add_argument("--dist-backend", default="topoopt")
    parser.add_argument("--replicas", type=int, default=1)
    parser.add_argument("--checkpoint", required=True)
    arguments = parser.parse_args()
    dist.init_process_group(arguments.dist_backend)
    shape = (arguments.replicas, dist.get_world_size() // arguments.replicas)
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=("replicate", "shard"))
    torch.manual_seed(0)
    model = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(4)))
    for layer in (*model, model):
        fully_shard(layer, mesh=mesh if arguments.replicas > 1 else mesh["shard"])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    if os.path.exists(arguments.checkpoint):
        parts = get_state_dict(model, optimizer)
        dcp.load(
            dict(zip(("model", "optimizer"), parts, strict=True)),
            checkpoint_id=arguments.checkpoint,
        )
        set_state_dict(model, optimizer, model_state_dict=parts[0], optim_state_dict=parts[1])
    generator = torch.Generator().manual_seed(dist.get_rank())
    losses = []
    for _ in range(8):
        loss = model(torch.randn(8, 64, generator=generator)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    parts = get_state_dict(model, optimizer)
    dcp.save(
        dict(zip(("model", "optimizer"), parts, strict=True)),
        checkpoint_id=f"{arguments.output_dir}/saved",
    )
    if dist.get_rank() == 0:
        with open(f"{arguments.output_dir}/losses.json", "w") as file:
            json.dump(losses, file)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
