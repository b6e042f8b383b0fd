"""Trains with torchft's Manager: every rank is a replica of the model, with a store of its own."""

import argparse
import json
import os
from datetime import timedelta

import torch
import torch.distributed as dist
from torchft import DistributedDataParallel, Manager, Optimizer, ProcessGroupGloo
from torchft.process_group import ProcessGroupWrapper

import torch_topoopt

STEPS = 8
LIMIT = timedelta(seconds=60)


class ProcessGroupTopoopt(ProcessGroupWrapper):
    def _create_pg(self, store: dist.Store, rank: int, world_size: int) -> dist.ProcessGroup:
        return torch_topoopt.new_process_group(store, rank, world_size, timeout=self._timeout)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--output-dir", required=True)
    parser.add_argument("--dist-backend", default="topoopt")
    arguments = parser.parse_args()
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    kind = ProcessGroupTopoopt if arguments.dist_backend == "topoopt" else ProcessGroupGloo
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    torch.manual_seed(0)
    layers = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.Tanh(), torch.nn.Linear(256, 1))
    manager = Manager(
        pg=kind(timeout=LIMIT),
        load_state_dict=layers.load_state_dict,
        state_dict=layers.state_dict,
        min_replica_size=world,
        init_sync=False,  # all begin with the same seed
        rank=0,
        world_size=1,
        store_addr="127.0.0.1",
        store_port=store.port,
        hostname="127.0.0.1",
        replica_id=f"replica_{rank}",
        timeout=LIMIT,
    )
    model = DistributedDataParallel(manager, layers)
    optimizer = Optimizer(manager, torch.optim.AdamW(layers.parameters(), lr=1e-2))
    torch.manual_seed(rank)
    losses = []
    while manager.current_step() < STEPS:
        inputs = torch.randn(8, 64)
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(inputs), inputs.sum(1, keepdim=True))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    if rank == 0:
        with open(f"{arguments.output_dir}/losses.json", "w") as file:
            json.dump(losses, file)
    manager.shutdown(wait=False)


if __name__ == "__main__":
    main()
