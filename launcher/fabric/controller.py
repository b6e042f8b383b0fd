"""`topoopt controller`: assigns paths to the flows of hosts on a switched network."""

from __future__ import annotations

import asyncio
import gc
import re
import sqlite3
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch_topoopt.launcher import console, documents, parser, shared_options, signals
from torch_topoopt.launcher.errors import InputError, input_errors
from torch_topoopt.plan.units import counted

if TYPE_CHECKING:
    import argparse

    from torch_topoopt.route_control.controller.service import RouteService
    from torch_topoopt.route_control.controller.state import RouteState

_SCHEMES = ("greedy", "ecmp", "annealing", "local-search")  # always have an answer, quickly

_DESCRIPTION = """\
Serves HTTP until it is stopped: hosts report flows as they start and end, and get the path of each
and the source port that takes it ("Routing for Large ML Models"). Flows move if a link of their
path fails, and where that relieves the most congested link. Starts and ends are predicted, and
assignments for them and for failures are computed ahead. docs/guides/routes.md has the requests.

NETWORK is a network file: switches, hosts and cables. The token, which every request has to show,
is one line of a file that only its owner can read. HTTP is not encrypted: listen where only hosts
of the cluster can connect.

The state is stored before a request is answered. A controller that is stopped or killed and started
again with the same file has the same assignments; meanwhile hosts leave their flows to ECMP."""

_EXAMPLES = """\
  topoopt controller --network network.json --token-file token --state-file routes.db
  topoopt controller --network network.json --token-file token --state-file routes.db \\
      --listen 10.0.0.1:7411 --scheme greedy"""


@dataclass(frozen=True)
class ServedController:
    """The output of `topoopt controller` once it serves."""

    url: str
    hosts: int
    flows: int
    epoch: int


def make_parser() -> argparse.ArgumentParser:
    """The options of the verb."""
    options = parser.Parser("controller", _DESCRIPTION, _EXAMPLES)
    shared_options.add(options, "network", required=True)
    options.add_argument(
        "--token-file",
        metavar="FILE",
        required=True,
        help="file with the token that hosts authenticate with",
    )
    options.add_argument(
        "--state-file", metavar="FILE", required=True, help="SQLite, made where there is none"
    )
    options.add_argument(
        "--listen",
        metavar="HOST:PORT",
        default="127.0.0.1:7411",
        help="port 0 takes a free one (default: %(default)s)",
    )
    options.add_argument(
        "--scheme",
        choices=_SCHEMES,
        default="local-search",
        help="as of topoopt assign (default: local-search)",
    )
    options.add_argument(
        "--lease",
        type=float,
        metavar="SECONDS",
        default=60.0,
        help="silence after which a host's flows are dropped (seconds, default: 60)",
    )
    options.add_argument(
        "--limit-rates",
        action="store_true",
        help="answers have the max-min fair share of each flow, for hosts to keep to",
    )
    options.add_argument(
        "--precompute",
        type=int,
        metavar="N",
        default=4096,
        help="maximum number of assignments to precompute after a change; 0: none (default: 4096)",
    )
    shared_options.add(options, "json")
    return options


def main(argv: list[str]) -> int:
    """Runs the verb, until a signal; raises Interrupted then."""
    arguments = make_parser().parse_args(argv)
    from torch_topoopt.fabric.credentials import CredentialError, PasswordSource
    from torch_topoopt.route_control.controller.request_handler import AssignmentOptions
    from torch_topoopt.route_control.controller.service import RouteService, check_token
    from torch_topoopt.route_control.controller.store import RouteStore
    from torch_topoopt.route_control.network_file import NetworkFile

    address = re.fullmatch(r"\[?([^\[\]]+)\]?:(\d{1,5})", arguments.listen)
    if not address or int(address[2]) >= 2**16:
        raise InputError(f"listen: {arguments.listen} is not HOST:PORT")
    if not 0 < arguments.lease < float("inf"):
        raise InputError(f"lease: {arguments.lease:g} is not a number of seconds above 0")
    if arguments.precompute < 0:
        raise InputError(f"precompute: {arguments.precompute} is not a number from 0 on")
    network = documents.load(NetworkFile, arguments.network)
    try:
        token = PasswordSource(file=arguments.token_file).read().reveal()
    except CredentialError as error:
        raise InputError(f"token-file: {error}") from None
    try:
        with input_errors():
            check_token(token)
            store = RouteStore(arguments.state_file, network)
    except sqlite3.Error as error:
        raise InputError(f"state-file: {arguments.state_file}: {error}") from None
    try:
        how = AssignmentOptions(arguments.lease, arguments.limit_rates, arguments.precompute)
        service = RouteService(store, token, arguments.scheme, how=how)
        gc.freeze()  # thousands of flows, in no cycle: collections can skip them
        received = asyncio.run(_serve(service, address[1], int(address[2]), arguments.json))
    finally:
        store.close()
    raise signals.Interrupted(received)


async def _serve(service: RouteService, host: str, port: int, as_json: bool) -> int:
    """Waits for a signal and returns it; asyncio would lose an exception of its handler."""
    loop = asyncio.get_running_loop()
    received: asyncio.Future[int] = loop.create_future()

    def end(number: int) -> None:
        if not received.done():
            received.set_result(number)

    for number in signals.HANDLED:
        loop.add_signal_handler(number, end, int(number))
    try:
        server = await service.serve(host, port)
    except OSError as error:
        raise InputError(f"listen: {host}:{port}: {error.strerror or error}") from None
    _say_where(
        service.handler.state, f"http://{host}:{server.sockets[0].getsockname()[1]}", as_json
    )
    try:
        return await received
    finally:
        server.close()
        await service.close()


def _say_where(state: RouteState, url: str, as_json: bool) -> None:
    hosts, flows = len(state.file.hosts), len(state.flows)
    if as_json:
        console.print_json(ServedController(url, hosts, flows, state.epoch))
        return
    console.Terminal().line(
        f"controller: {url}, {counted(hosts, 'host')}, {counted(flows, 'flow')}, "
        f"epoch {state.epoch}"
    )
