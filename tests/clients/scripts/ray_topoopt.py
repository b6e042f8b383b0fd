"""All workers reduce and say where they are: `ray_topoopt.py CLUSTER.yaml ADDRESS FOLDER`.

FOLDER gets a file for each rank: host, Ray's rank, sum, and bytes sent on each of its links.
"""

import json
import os
import sys
from pathlib import Path

import ray
import ray.train
import torch
import torch.distributed as dist
from ray.train import RunConfig
from ray.train.torch import TorchTrainer

from torch_topoopt.ray_train import TopoOptConfig
from torch_topoopt.runtime import backend

NUMBERS = 250_000


def reduce_once(config: dict[str, str]) -> None:
    rank = dist.get_rank()
    total = torch.full((NUMBERS,), float(rank))
    dist.all_reduce(total)
    found = {
        "host": os.environ["RAY_TEST_HOST"],
        "ray_rank": ray.train.get_context().get_world_rank(),
        "sum": total[0].item(),
        "links": [
            (of["source"], of["target"], of["sent_bytes"]) for of in backend.stats()["links"]
        ],
    }
    (Path(config["folder"]) / f"rank{rank}.json").write_text(json.dumps(found))


def main(cluster: str, address: str, folder: str) -> None:
    ray.init(address=address, _node_ip_address=address.partition(":")[0])
    config = TopoOptConfig(cluster=cluster, meet_timeout_s=60)
    TorchTrainer(
        reduce_once,
        train_loop_config={"folder": folder},
        torch_config=config,
        scaling_config=config.scaling_config(),
        run_config=RunConfig(storage_path=folder),
    ).fit()


if __name__ == "__main__":
    main(*sys.argv[1:])
