"""Ray Train on planned cables: `TopoOptConfig` instead of `TorchConfig` in a TorchTrainer.

    config = TopoOptConfig(cluster="lab.yaml")
    TorchTrainer(train_loop, torch_config=config, scaling_config=config.scaling_config()).fit()

Ray has numbered its workers when a backend starts, and their ranks must stay: Ray's rank 0, which
writes a checkpoint, is torch's rank 0. So `scaling_config` orders the ranks earlier, by the nodes
on which Ray places them (along a ring of cables). The servers of the plan are then numbered like
Ray's nodes. After a failure Ray starts a new group of workers, which is planned and wired again.

Rank 0 plans. The first worker of each server opens and verifies its links, as `topoopt run` does;
the process group "topoopt" then starts with the plan and the wiring.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

try:
    import ray
    from ray.train import ScalingConfig
    from ray.train.torch import TorchConfig
except ImportError as missing:
    raise ImportError(
        f"torch_topoopt.ray_train needs Ray Train ({missing}): pip install 'torch-topoopt[ray]'"
    ) from None

from torch_topoopt.discovery.host import Announcement
from torch_topoopt.fabric.cluster.static_plan import cluster_of, network_of
from torch_topoopt.fabric.cluster.switched_plan import cluster_on_switches
from torch_topoopt.fabric.cluster_file.load import load_cluster
from torch_topoopt.fabric.loopback import LoopbackFabric
from torch_topoopt.launcher import documents
from torch_topoopt.launcher.rendezvous.cluster_site import ClusterChoice, ClusterSite, servers_here
from torch_topoopt.launcher.shared_options import DEFAULT_LINK_GBPS
from torch_topoopt.links.nccl_wiring import ring_order
from torch_topoopt.links.secret import SECRET_VARIABLE, fresh_secret
from torch_topoopt.plan import Cluster, Plan
from torch_topoopt.plan.codec import DocumentError
from torch_topoopt.plan.units import counted, parse_gbps
from torch_topoopt.planner.demand_plan import plan_for_demand, unknown_demand
from torch_topoopt.planner.options import PlanningOptions
from torch_topoopt.processes.scratch import scratch_folder

if TYPE_CHECKING:
    from torch_topoopt.fabric.cluster_file.cluster_file import ClusterFile
    from torch_topoopt.fabric.driver import FabricDriver
    from torch_topoopt.links.wiring import Wiring
    from torch_topoopt.plan import Network

_NODE_LABEL = "ray.io/node-id"
_NAME = "topoopt"


@dataclass
class TopoOptConfig(TorchConfig):
    """Configuration of the process group "topoopt" for Ray Train's TorchTrainer.

    With `cluster`, a cluster file (`topoopt discover` writes it), workers run on its servers, each
    on the Ray node with the server's management address. Their traffic uses the file's cables and
    switches. With `degree`, all workers are on one machine, and every `workers_per_server` of them
    are an emulated server with that many ports of `bandwidth` ("200Mbps"; None: as fast as the
    machine). Without both, workers discover their connections, and nothing is planned.

    `plan` is the path of a plan to use. By default rank 0 plans for data parallelism of `model` (a
    name, `file.py:callable`, or a saved OpGraph) with `batch_size` samples of all workers together,
    or without a model for AllReduce among all servers. Cluster file and plan are read when you make
    the configuration, a model by the worker of rank 0.

    `backend`, `init_method` and `timeout_s` are TorchConfig's; `backend` may also be a list such as
    "cpu:topoopt,cuda:topoopt". `meet_timeout_s` limits how long servers wait for each other during
    wiring. Variables of docs/reference/environment.md go into Ray's runtime environment.

    Raises:
        ValueError: contradictory options, an invalid bandwidth, or (DocumentError, a subclass) an
            unreadable cluster file or plan.
    """

    backend: str | None = _NAME
    cluster: str | None = None
    degree: int | None = None
    bandwidth: str | None = None
    workers_per_server: int = 1
    plan: str | None = None
    model: str | None = None
    batch_size: int | None = None
    seed: int = 0
    meet_timeout_s: float = 300.0

    def __post_init__(self) -> None:
        if _NAME not in (self.backend or ""):
            raise ValueError(
                f'backend: {self.backend!r} does not name "{_NAME}"; use TorchConfig for others'
            )
        if self.cluster is not None:
            for name in ("degree", "bandwidth"):
                if getattr(self, name) is not None:
                    raise ValueError(f"{name}: the cluster file says it; leave {name} out")
            if self.workers_per_server != 1:
                raise ValueError(
                    "workers_per_server: the cluster file says how many accelerators a server has"
                )
        elif self.degree is None:
            for name in ("bandwidth", "plan", "model"):
                if getattr(self, name) is not None:
                    raise ValueError(
                        f"{name}: needs a cluster file, or the degree of emulated servers"
                    )
        if self.workers_per_server < 1:
            raise ValueError(f"workers_per_server: {self.workers_per_server} is not at least 1")
        if self.plan is not None and self.model is not None:
            raise ValueError("model: a plan is given, which says what it is for; leave one out")
        if self.batch_size is not None and self.model is None:
            raise ValueError("batch_size: is that of a model; name one")
        if not self.meet_timeout_s > 0:
            raise ValueError(f"meet_timeout_s: {self.meet_timeout_s:g} is not greater than 0")
        self.link_gbps()
        self.file = None if self.cluster is None else load_cluster(self.cluster)
        self.given = None if self.plan is None else _plan_at(self.plan)

    @property
    def backend_cls(self) -> type:
        """The class that starts the process groups of a worker group."""
        return _TopoOptBackend

    def to_dict(self) -> dict[str, Any]:
        """The fields, for Ray's records of a run."""
        own = ("cluster", "degree", "bandwidth", "workers_per_server", "plan", "model", "seed")
        return {**super().to_dict(), **{name: getattr(self, name) for name in own}}

    def link_gbps(self) -> float | None:
        """The rate of emulated links; None if it is not limited. Raises ValueError."""
        if self.bandwidth is None:
            return None
        try:
            return parse_gbps(self.bandwidth)
        except ValueError as error:
            raise ValueError(f"bandwidth: {error}") from None

    def scaling_config(self, **options: Any) -> Any:
        """A ScalingConfig that makes Ray number its workers along the cables of the cluster file.

        There is a worker for each accelerator, pinned to the Ray node of its server. Ranks follow a
        ring of cables (with a given plan, its server numbers), so that neighbours in rank share a
        cable where possible. `options` are others of ScalingConfig, such as `use_gpu`.
        Needs ray.init().

        Raises:
            ValueError: no cluster file was given, `options` place workers, or a server has no node.
            FabricError: the cables do not join all servers.
        """
        file = self.file
        if file is None:
            raise ValueError("cluster: without a cluster file there is no order; use ScalingConfig")
        for name in ("num_workers", "label_selector"):
            if name in options:
                raise ValueError(f"{name}: the cluster file says it; leave {name} out")
        listed: Any = ray.nodes  # untyped in Ray
        nodes = {node["NodeManagerAddress"]: node["NodeID"] for node in listed() if node["Alive"]}
        order = _order_of(file) if self.given is None else range(len(file.servers))
        pinned = []
        for number in order:
            server = file.servers[number]
            address = _address_of(server.management)
            if address not in nodes:
                raise ValueError(
                    f"cluster: no Ray node is at {server.management}, the management address of "
                    f"{server.name} (nodes: {', '.join(sorted(nodes))}); start Ray there with "
                    f"--node-ip-address {address}"
                )
            pinned += [{_NODE_LABEL: nodes[address]}] * server.accelerators
        return ScalingConfig(**{"num_workers": len(pinned), "label_selector": pinned, **options})


def _address_of(management: str) -> str:
    try:
        return socket.gethostbyname(management)
    except OSError as error:
        reason = getattr(error, "strerror", None) or "no address"
        raise ValueError(f"cluster: management address {management!r}: {reason}") from None


def _plan_at(path: str) -> Plan:
    try:
        return Plan.load(path)
    except OSError as error:
        raise DocumentError(f"{path}: cannot read this Plan: {error.strerror}") from None


def _order_of(file: ClusterFile) -> tuple[int, ...]:
    """The servers along a ring of cables; in the file's order where switches join them."""
    if file.switches:
        return tuple(range(len(file.servers)))
    cluster, network = cluster_of(file), network_of(file)
    plan = Plan.of_network(cluster, network, unknown_demand(cluster), model="", mode="fixed")
    return ring_order(plan)


_TorchBackend: Any = TorchConfig().backend_cls


class _TopoOptBackend(_TorchBackend):  # type: ignore[misc]
    """Plans and wires before Ray's own backend starts the process groups of the workers."""

    def on_start(self, worker_group: Any, backend_config: TopoOptConfig) -> None:
        """Plans and wires for a new group of workers; raises the errors of both."""
        try:
            if backend_config.file is not None:
                _wire_cluster(worker_group, backend_config)
            elif backend_config.degree is not None:
                _wire_emulated(worker_group, backend_config)
            super().on_start(worker_group, backend_config)
        except BaseException:
            _release_all(worker_group)
            raise

    def on_shutdown(self, worker_group: Any, backend_config: TopoOptConfig) -> None:
        """Ends the process groups, then releases the workers' resources."""
        super().on_shutdown(worker_group, backend_config)
        _release_all(worker_group)


def _release_all(worker_group: Any) -> None:
    with contextlib.suppress(ray.exceptions.RayError):  # of workers that have ended
        worker_group.execute(_release)


def _wire_emulated(group: Any, config: TopoOptConfig) -> None:
    machines = dict.fromkeys(group.execute(_machine))
    if len(machines) > 1:
        raise ValueError(
            f"degree: emulated servers are on one machine, but Ray has placed workers on "
            f"{len(machines)}; ask for one node (placement_strategy STRICT_PACK), or give a "
            "cluster file"
        )
    workers, per_server = len(group), config.workers_per_server
    if workers % per_server:
        raise ValueError(
            f"num_workers: {workers} is not a multiple of {per_server} workers per server"
        )
    group.execute(_prepare, fresh_secret().hex())
    plan = group.execute_single(0, _plan_emulated, config, workers // per_server)
    wiring = group.execute_single(0, _connect_emulated, plan, config.link_gbps())
    group.execute(_use, plan, wiring)


def _wire_cluster(group: Any, config: TopoOptConfig) -> None:
    assert config.file is not None
    names = group.execute(_server_here, config.file)
    servers = list(dict.fromkeys(names))
    per_server = len(names) // len(servers)
    if names != [name for name in servers for _ in range(per_server)]:
        raise ValueError(
            "num_workers: every server needs equally many workers, whose ranks follow each other, "
            f"but Ray has placed them on {', '.join(names)}; TopoOptConfig.scaling_config() says "
            "where they belong"
        )
    file = config.file.of_servers(servers)
    group.execute(_prepare, fresh_secret().hex())
    plan = group.execute_single(0, _plan_cluster, config, file, per_server)
    port = group.execute_single(0, _free_port)
    wirings = ray.get(
        [
            group.execute_single_async(
                number * per_server,
                _connect_server,
                plan,
                ClusterChoice(
                    *(file, str(config.cluster), number, file.servers[0].management, port),
                    config.meet_timeout_s,
                ),
            )
            for number in range(len(servers))
        ]
    )
    ray.get(
        [
            group.execute_single_async(rank, _use, plan, wirings[rank // per_server])
            for rank in range(len(group))
        ]
    )


# ---- functions that run in workers ---------------------------------------------------------------

_held = contextlib.ExitStack()  # of this worker: links' addresses, and its folder
_folder = Path()


def _machine() -> str:
    return Announcement.here(0).machine


def _prepare(secret: str) -> None:
    """Makes this worker's folder, with the secret of the job unless it already has another."""
    global _folder
    _release()
    _folder = _held.enter_context(scratch_folder())
    if not os.environ.get(SECRET_VARIABLE):
        path = _folder / "secret"
        path.touch(mode=0o600)
        path.write_text(secret)
        _set_variable(SECRET_VARIABLE, str(path))


def _release() -> None:
    _held.close()


def _use(plan: str, wiring: str) -> None:
    """Sets this plan for the process groups of this worker."""
    for variable, text in (("TOPOOPT_PLAN", plan), ("TOPOOPT_WIRING", wiring)):
        path = _folder / f"{variable.removeprefix('TOPOOPT_').lower()}.json"
        path.write_text(text)
        _set_variable(variable, str(path))


def _set_variable(name: str, value: str) -> None:
    os.environ[name] = value
    _held.callback(os.environ.pop, name, None)


def _plan_emulated(config: TopoOptConfig, servers: int) -> str:
    plan = config.given
    if plan is None:
        cluster = Cluster(
            servers,
            config.degree or 0,
            config.link_gbps() or DEFAULT_LINK_GBPS,
            accelerators_per_server=config.workers_per_server,
        )
        return _planned(config, cluster, None)
    documents.check_one_rate(plan, str(config.plan))
    for name, asked, planned in (
        ("servers", servers, plan.cluster.servers),
        ("degree", config.degree, plan.cluster.degree),
        ("workers_per_server", config.workers_per_server, plan.cluster.accelerators_per_server),
    ):
        if planned != asked:
            raise ValueError(f"{name}: {asked}, but {config.plan} is a plan for {planned}")
    return plan.to_json()


def _connect_emulated(plan: str, gbps: float | None) -> str:
    driver = LoopbackFabric(job=os.getpid(), gbps=gbps)
    _held.callback(driver.close)
    return _connected(driver, Plan.from_json(plan)).to_json()


def _server_here(file: ClusterFile) -> str:
    """The name of this worker's server in the cluster file."""
    here = [file.servers[number].name for number in servers_here(file)]
    if len(here) != 1:
        managements = ", ".join(f"{server.name} {server.management}" for server in file.servers)
        found = f"those of {', '.join(here)}" if here else "none"
        raise ValueError(
            f"cluster: a worker is on {socket.gethostname()}, which has {found} of the management "
            f"addresses of {file.name} ({managements})"
        )
    return here[0]


def _plan_cluster(config: TopoOptConfig, file: ClusterFile, per_server: int) -> str:
    """`file` with only the workers' servers, in the order of their ranks."""
    plan, names = config.given, [server.name for server in file.servers]
    if plan is None:
        switched = bool(file.switches)
        cluster = cluster_on_switches(file) if switched else cluster_of(file)
        cluster = replace(cluster, accelerators_per_server=per_server)
        return _planned(config, cluster, None if switched else network_of(file))
    there = plan.cluster
    if (there.servers, there.accelerators_per_server) != (len(names), per_server):
        raise ValueError(
            f"plan: {config.plan} is for {counted(there.servers, 'server')} with "
            f"{counted(there.accelerators_per_server, 'rank')} each, but Ray has placed "
            f"{counted(per_server, 'worker')} on each of {len(names)}"
        )
    assert config.file is not None
    if names != [server.name for server in config.file.servers]:
        raise ValueError(
            f"plan: {config.plan} numbers the servers as the cluster file does, but Ray has placed "
            f"ranks on {', '.join(names)}; TopoOptConfig.scaling_config() orders them"
        )
    return plan.to_json()


def _planned(config: TopoOptConfig, cluster: Cluster, network: Network | None) -> str:
    """The plan for the model, or for an AllReduce of unknown size, with its recovery options."""
    if config.model is None:
        demand = unknown_demand(cluster.validate(any_degree=network is not None))
        plan = plan_for_demand(cluster, demand, None, name="ray", seed=config.seed, network=network)
    else:
        ranks = cluster.servers * cluster.accelerators_per_server
        graph = documents.op_graph_of(config.model, config.batch_size, accelerators=ranks)
        options = PlanningOptions(seed=config.seed, strategy_space="data-parallel", network=network)
        plan = documents.make_plan(graph, cluster, options, documents.without_progress)
    return documents.with_failures(plan, documents.without_progress).to_json()


def _free_port() -> int:
    with socket.create_server(("", 0)) as listener:
        return int(listener.getsockname()[1])


def _connect_server(plan: str, choice: ClusterChoice) -> str:
    """Wires the server of this worker, the first on it, together with all others."""
    with ClusterSite.join(choice) as site:
        driver = site.fabric(_folder / "switches-before")
        _held.callback(driver.close)
        return _connected(driver, Plan.from_json(plan), speaks=site.leads).to_json()


def _connected(driver: FabricDriver, plan: Plan, *, speaks: bool = True) -> Wiring:
    wiring = driver.connect(plan)
    if speaks:
        cluster = plan.cluster
        print(
            f"topoopt: {counted(cluster.servers, 'server')}, "
            f"{counted(cluster.accelerators_per_server, 'rank')} each; plan {plan.digest()}; "
            f"{counted(len(plan.network.links), 'link')} on {wiring.fabric}, each verified from "
            "both ends",
            file=sys.stderr,
            flush=True,
        )
    return wiring
