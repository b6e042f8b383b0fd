"""The first things that users do, timed from an empty folder: one bash script each.

    python benchmarks/journeys.py
    python benchmarks/journeys.py --only advise,compare -J journeys.json
    python benchmarks/journeys.py --checkout ../older          # after its `make setup`

Preparations (a wheel, the script to train, hosts of the rehearsal) are not timed. Journeys with
network namespaces need root. Both the seconds and the processor time of all processes are shown;
the second says more where others use the machine. "-" stands for a journey that this checkout lacks
or that failed, with its last line of output.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LIMIT_S = 600.0

TRAIN = """\
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def build_model():
    return torch.nn.Sequential(torch.nn.Linear(784, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))


def example_batch(batch_size=32):
    return torch.zeros(batch_size, 784)


if __name__ == "__main__":
    dist.init_process_group()
    model = DistributedDataParallel(build_model())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(STEPS):
        optimizer.zero_grad()
        model(torch.randn(32, 784)).square().mean().backward()
        optimizer.step()
        AFTER_STEP
    dist.destroy_process_group()
"""
# The script also runs for the trace, which is no training.
SAY_STARTED = (
    'if step == 20 and "TOPOOPT_WIRING" in __import__("os").environ: open("started", "w").close()'
)
FAIL_ONCE = (
    'if step == 3 and dist.get_rank() == 2 and __import__("os").environ'
    '["TORCHELASTIC_RESTART_COUNT"] == "0": raise RuntimeError("this rank fails once")'
)
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 8192,
    "torch_dtype": "bfloat16",
}
NCCL = """\
<system version="1"><cpu host_hash="0x1" numaid="0" affinity="ff" arch="x86_64"
 vendor="GenuineIntel" familyid="6" modelid="143">
<pci busid="0000:01:00.0" class="0x030200" link_speed="32.0 GT/s PCIe" link_width="16">
<gpu dev="0" sm="90" rank="0" gdr="1"/></pci>
<pci busid="0000:02:00.0" class="0x020700" link_speed="32.0 GT/s PCIe" link_width="16"><nic>
<net name="mlx5_0" dev="0" speed="200000" port="1" guid="0x1" maxconn="131072" gdr="1"/>
<net name="mlx5_1" dev="1" speed="200000" port="1" guid="0x2" maxconn="131072" gdr="1"/>
</nic></pci></cpu></system>
"""
HOSTS = """\
topoopt fabric up journey --servers 3 --degree 2 --bandwidth 50Mbps
"""
DISCOVER = """\
on() { host=$1; shift; ip netns exec "topoopt-journey-$host" "$@"; }
address() { on "$1" ip -o -4 address show management | awk '{print $4}' | cut -d/ -f1; }
(umask 077; python3 -c 'import secrets; print(secrets.token_hex(16))' >token)
for host in 0 1 2; do on $host topoopt discover --agent --token-file token >agent$host.log & done
until [ "$(cat agent?.log | grep -c listening)" = 3 ]; do sleep 0.1; done
topoopt discover --agents "$(address 0)" "$(address 1)" "$(address 2)" --token-file token \
  --interfaces port -o lab.yaml
wait
sed -i 's/bandwidth: 10Gbps/bandwidth: 50Mbps/' lab.yaml
"""
REMOVE_HOSTS = "topoopt fabric down journey"
ENTER = """\
cat >enter <<'END'
#!/bin/sh
for host in /run/netns/topoopt-journey-?; do
  nsenter --net=$host ip -o address | grep -qF " $2/" && exec nsenter --net=$host sh -c "$3"
done
END
chmod +x enter
"""


@dataclass(frozen=True)
class Journey:
    """`script` is timed; `before` and `after` are not. Bash ends each at its first error."""

    name: str
    question: str
    script: str
    before: str = ""
    after: str = ""


JOURNEYS = (
    Journey(
        "demo",
        "a wheel installed where PyTorch is, and the demo",
        "python -m pip install --quiet --no-deps --target site wheel/*.whl\n"
        "PYTHONPATH=site python -m torch_topoopt.launcher.main demo",
        before='"$CHECKOUT"/.ci/make-dist "$(command -v python)" wheel',
    ),
    Journey(
        "advise",
        "four boxes with two ports: a cabling drawing",
        "topoopt advise --servers 4 --degree 2 --bandwidth 200Gbps -o cabling\n"
        "test -e cabling/cabling.svg",
    ),
    Journey(
        "config",
        "a config.json of 8B parameters on four DGX Sparks: a plan",
        "topoopt plan config.json --servers 4 --degree 2 --bandwidth 200Gbps "
        "--accelerator gb10:bf16 --batch-size 32",
    ),
    Journey(
        "rehearsal",
        "three cabled hosts: discovered, planned, trained",
        DISCOVER
        + """\
topoopt plan train.py --cluster lab.yaml --strategy-space data-parallel
for host in 0 1 2; do
  on $host topoopt run --cluster lab.yaml --nnodes 3 --node-rank $host \
    --master-addr "$(address 0)" --run-dir run$host train.py &
done
for job in $(jobs -p); do wait "$job"; done
test -e run0/report.html
""",
        before=HOSTS,
        after=REMOVE_HOSTS,
    ),
    Journey(
        "run",
        "a DDP script on four emulated hosts",
        "topoopt run --servers 4 --degree 2 --run-dir run train.py\ntest -e run/report.html",
    ),
    Journey(
        "compare",
        "one model on three kinds of network: times and costs",
        "topoopt compare vgg:tiny --servers 16 --degree 4 --bandwidth 100Gbps "
        "--architectures topoopt,fat-tree,torus",
    ),
    Journey(
        "link",
        "one cable measured in both directions",
        "topoopt bench link h0 h1 --cluster lab.yaml --ssh-command ./enter --window 0.1",
        before=HOSTS + DISCOVER + ENTER,
        after=REMOVE_HOSTS,
    ),
    Journey(
        "typo",
        "a misspelt option is named",
        "topoopt plan vgg --server 4 2>error || test $? = 2\ngrep -q -- --servers error",
    ),
    Journey(
        "interrupt",
        "a script started, Ctrl-C at its 20th step, a report",
        """\
set -m
topoopt run --servers 4 --degree 2 --run-dir run endless.py &
until test -e started; do sleep 0.05; done
kill -INT -- -$!
wait $! || true
test -e run/report.html
""",
    ),
    Journey(
        "nccl",
        "a server as NCCL describes it: a plan for four of them",
        "topoopt plan vgg:tiny --servers 4 --server-file nccl.xml",
    ),
    Journey(
        "restart",
        "a rank that fails once: restarted, and trained to the end",
        "topoopt run --servers 4 --degree 2 --max-restarts 1 --run-dir run fails.py\n"
        "test -e run/report.html",
    ),
)


@dataclass(frozen=True)
class Timed:
    """`seconds` is None if the journey failed, and `said` the last line that it printed."""

    name: str
    question: str
    seconds: float | None
    processor_s: float | None
    said: str = ""


def processor_s() -> float:
    """Of all processes that have ended and were waited for: it depends little on other work."""
    times = os.times()
    return times.children_user + times.children_system


def write_inputs(folder: Path) -> None:
    def script(name: str, steps: int, after_step: str = "pass") -> None:
        text = TRAIN.replace("STEPS", str(steps)).replace("AFTER_STEP", after_step)
        (folder / name).write_text(text)

    script("train.py", 5)
    script("endless.py", 10**9, SAY_STARTED)
    script("fails.py", 10, FAIL_ONCE)
    (folder / "config.json").write_text(json.dumps(CONFIG))
    (folder / "nccl.xml").write_text(NCCL)


def timed(journey: Journey, checkout: Path) -> Timed:
    """Runs a journey in a folder of its own."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_inputs(folder)
        programs = folder / "programs"
        programs.mkdir()
        program = programs / "topoopt"
        start = f"{sys.executable} -m torch_topoopt.launcher.main"
        made = checkout / ".venv/bin/topoopt"  # with the versions that an older checkout pins
        run = f"exec {made}" if made.exists() else f"PYTHONPATH={checkout} exec {start}"
        program.write_text(f'#!/bin/sh\n{run} "$@"\n')
        program.chmod(0o755)
        environment = {
            **os.environ,
            "CHECKOUT": str(checkout),
            "PATH": f"{programs}:{Path(sys.executable).parent}:{os.environ['PATH']}",
        }

        def bash(script: str) -> subprocess.CompletedProcess[str]:
            return subprocess.run(
                ["bash", "-euo", "pipefail", "-c", script],
                cwd=folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                timeout=LIMIT_S,
                check=False,
            )

        try:
            ready = bash(journey.before)
            begin, used = time.perf_counter(), processor_s()
            done = bash(journey.script) if ready.returncode == 0 else ready
            seconds, used = time.perf_counter() - begin, processor_s() - used
        finally:
            bash(journey.after)
    if done.returncode == 0:
        return Timed(journey.name, journey.question, seconds, used)
    last = done.stdout.strip().splitlines()[-1:]
    return Timed(journey.name, journey.question, None, None, "".join(last))


def main(argv: list[str] | None = None) -> int:
    """Prints the table; returns the exit code."""
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = [journey.name for journey in JOURNEYS]
    options.add_argument("--only", metavar="NAME,...", help=f"some of {', '.join(names)}")
    options.add_argument(
        "--checkout", type=Path, default=ROOT, metavar="DIR", help="default: this one"
    )
    options.add_argument("-J", "--json-file", type=Path, metavar="FILE")
    arguments = options.parse_args(argv)
    wanted = names if arguments.only is None else arguments.only.split(",")
    if unknown := [name for name in wanted if name not in names]:
        options.error(f"--only: {unknown[0]!r} is not one of {', '.join(names)}")
    results = []
    print(f"{'journey':<62}{'seconds':>9}{'processor':>11}  (load {os.getloadavg()[0]:.1f})")
    for journey in JOURNEYS:
        if journey.name in wanted:
            result = timed(journey, arguments.checkout.resolve())
            results.append(result)
            times = ["-" if t is None else f"{t:.1f}" for t in (result.seconds, result.processor_s)]
            print(f"{journey.question:<62}{times[0]:>9}{times[1]:>11}  {result.said}", flush=True)
    if arguments.json_file is not None:
        found = {"load": os.getloadavg()[0], "journeys": [asdict(result) for result in results]}
        arguments.json_file.write_text(json.dumps(found, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
