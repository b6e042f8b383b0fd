"""The options of the packet level of `topoopt simulate`, `compare` and `alltoall`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch_topoopt.launcher.errors import InputError

if TYPE_CHECKING:
    import argparse


def add_level(options: argparse.ArgumentParser) -> None:
    """Adds --level."""
    options.add_argument(
        "--level",
        default="flow",
        help="flow: links shared max-min fairly (default); packet: every packet and queue, one "
        "path a flow",
    )


def add_options(options: argparse.ArgumentParser, *, seed: bool = True, rings: bool = True) -> None:
    """Adds the options; without `seed` if the verb has its own --seed, without `rings` if it
    simulates none."""
    from torch_topoopt.sim.iteration_program import RING_STEPS
    from torch_topoopt.sim.packet import ACKS, PATH_CHOICES, TRANSPORTS

    if rings:
        options.add_argument(
            "--rings",
            action="store_true",
            help="AllReduces on rings, or rows and columns, only, as in the papers (default: also "
            "on schedules made for the links of a direct network)",
        )
    packet = options.add_argument_group("packet level")
    packet.add_argument(
        "--transport", choices=TRANSPORTS, help="how senders behave (default: constant, full rate)"
    )
    packet.add_argument(
        "--mtu", type=int, metavar="BYTES", help="payload of a full packet (bytes, default: 8936)"
    )
    packet.add_argument(
        "--acks",
        choices=ACKS,
        help="how acknowledgements return: after the path's latency (default), over the links of "
        "the path in the other direction, or at once",
    )
    packet.add_argument(
        "--lossless", action="store_true", default=None, help="full buffers pause links (PFC)"
    )
    if rings:
        packet.add_argument(
            "--path-choice",
            choices=PATH_CHOICES,
            help="planned: packets take the path of their flow (default); adaptive: at every node, "
            "of the links of all shortest paths, that with the shortest queue, on the virtual "
            "channels of the architecture (transport constant)",
        )
    if seed:
        packet.add_argument("--seed", type=int, metavar="N", help="random seed")
    if rings:
        packet.add_argument(
            "--ring-steps",
            choices=RING_STEPS,
            help="--rings, and their steps: together, as one flow for each hop; chained: a server "
            "sends what it received in the step before; barrier: all wait for all",
        )
    packet.add_argument(
        "--option",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="any other option of docs/planning/simulators.md, as header_bytes=64; may be repeated",
    )


def uses_schedules(arguments: argparse.Namespace) -> bool:
    """Whether AllReduces also choose among schedules made for the links."""
    return not arguments.rings and arguments.ring_steps is None


def given_options(arguments: argparse.Namespace, *, seed: bool = True) -> dict[str, Any]:
    """The requested keywords of the packet level; raises InputError."""
    given = {
        "transport": arguments.transport,
        "mtu_bytes": arguments.mtu,
        "acks": arguments.acks,
        "lossless": arguments.lossless,
        "path_choice": getattr(arguments, "path_choice", None),
        "ring_steps": getattr(arguments, "ring_steps", None),
        "seed": arguments.seed if seed else None,
    }
    options = {name: value for name, value in given.items() if value is not None}
    for text in arguments.option:
        name, equals, value = text.partition("=")
        if not equals:
            raise InputError(f"option: {text!r} is not NAME=VALUE")
        options[name] = _value(value)
    if options and arguments.level != "packet":
        raise InputError(f"level: {', '.join(options)} needs --level packet")
    return options


def _value(text: str) -> object:
    """A number or a truth value if the text is one, else the text."""
    if text in ("true", "false"):
        return text == "true"
    for convert in (int, float):
        try:
            return convert(text)
        except ValueError:
            continue
    return text
