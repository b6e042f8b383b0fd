"""Options that several verbs share, and an argument parser that fails with one clear line."""

from __future__ import annotations

import argparse
import difflib
import itertools
import re
import sys
from typing import TYPE_CHECKING, Any, NoReturn

from torch_topoopt.launcher.errors import InputError, input_errors
from torch_topoopt.plan.units import parse_gbps
from torch_topoopt.user_functions import UserFunction, UserFunctionError, is_file

if TYPE_CHECKING:
    from collections.abc import Sequence

    from _typeshed import SupportsWrite

    from torch_topoopt.plan import Cluster
    from torch_topoopt.planner.options import MicroBatches


# The options of the command in progress, and the arguments given to it: see `as_option`.
_in_use: tuple[argparse.ArgumentParser, list[str]] | None = None


class Parser(argparse.ArgumentParser):
    """Raises InputError instead of printing the whole usage."""

    def __init__(self, verb: str, description: str, examples: str) -> None:
        super().__init__(
            prog=f"topoopt {verb}",
            description=description,
            epilog=f"examples:\n{examples}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        self._given: list[str] = []

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """As argparse does; remembers the arguments, for better error messages."""
        self._given = list(sys.argv[1:] if args is None else args)
        use(self, self._given)
        return super().parse_known_args(args, namespace)

    def print_help(self, file: SupportsWrite[str] | None = None) -> None:
        """As argparse does, but reports if the help cannot be written."""
        (file or sys.stdout).write(self.format_help())

    def error(self, message: str) -> NoReturn:
        fail(self, message, self._given)


def use(options: argparse.ArgumentParser, given: Sequence[str]) -> None:
    """Sets the options whose names `as_option` spells."""
    global _in_use
    _in_use = (options, list(given))


def as_option(message: str) -> str:
    """`message` with the option at its start spelt as on the command line: "batch_size: 0 is ..."
    becomes "--batch-size: 0 is ...".

    Only an option that was given, or is missing, is meant; other names are fields of documents.
    """
    name, colon, rest = message.partition(": ")
    if _in_use is None or not colon or not re.fullmatch(r"[a-z][a-z_-]*", name):
        return message
    options, given = _in_use
    action = options._option_string_actions.get("--" + name.replace("_", "-"))
    if action is None:
        return message
    words = {word.partition("=")[0] for word in given}
    words |= {word[:2] for word in given if word[:1] == "-" and word[:2] != "--"}  # as -oFILE
    if not words.intersection(action.option_strings) and not rest.startswith("missing"):
        return message
    return f"--{name.replace('_', '-')}: {rest}"


def defaults_text(arguments: argparse.Namespace) -> str:
    """The options of the command in progress that have their default value."""
    if _in_use is None:
        return ""
    options, _ = _in_use
    return ", ".join(
        f"{action.option_strings[-1]} {action.default}"
        for action in options._actions
        if action.option_strings
        and not any(action.default is none for none in (None, False, argparse.SUPPRESS))
        and getattr(arguments, action.dest, None) == action.default
    )


def refuse_after_script(script: str, words: Sequence[str], missing: str, *others: str) -> None:
    """Raises InputError if the option `missing`, or one of `others` that replace it, is among the
    arguments of the script, so was meant for us."""
    for name in (missing, *others):
        if any(word == name or word.startswith(f"{name}=") for word in words):
            raise InputError(
                f"{missing} is missing; {name} after {script} is passed to {script}, "
                f"so put it before"
            )


def fail(options: argparse.ArgumentParser, message: str, given: Sequence[str]) -> NoReturn:
    """Raises InputError for argparse's error about the arguments `given`, in plain words.

    A misspelt option gets a suggestion. A value that begins with "-", which argparse treats as an
    option, is checked as a value.
    """
    missing = re.fullmatch(r"argument (\S+): expected one argument", message)
    if missing:
        message = _dashed_value(options, missing[1].split("/"), given) or message
    wrong = None
    if message.startswith("unrecognized arguments: "):
        extra = message.removeprefix("unrecognized arguments: ").split()
        wrong = next((text for text in extra if text.startswith("-")), None)
    elif re.match(r"the following arguments are required|argument [^-\s]+: ", message):
        # the value of an unknown option counts as a positional argument
        known = options._option_string_actions
        names = (text.partition("=")[0] for text in given if text.startswith("--"))
        wrong = next((name for name in names if name not in known), None)
        message = _required(options, message)
    if wrong is not None:
        raise no_such_option(wrong.partition("=")[0], spellings(options), options.prog)
    message = re.sub(r"^argument (?:-\w/)?--([^\s/]+)\S*: (?:\1: )?", r"--\1: ", message)
    raise InputError(f"{message} (see `{options.prog} --help`)")


def no_such_option(name: str, known: Sequence[str], prog: str) -> InputError:
    """The error for an option that is not in `known`; names the nearest that is."""
    near = difflib.get_close_matches(name, known, n=1)
    hint = f"; did you mean {near[0]}?" if near else ""
    return InputError(f"{name}: there is no such option{hint} (see `{prog} --help`)")


def _required(options: argparse.ArgumentParser, message: str) -> str:
    """`message` without optional arguments that argparse calls required."""
    head, colon, names = message.partition(": ")
    rest = {a.metavar or a.dest for a in options._actions if a.nargs == argparse.REMAINDER}
    return head + colon + ", ".join(name for name in names.split(", ") if name not in rest)


def _dashed_value(
    options: argparse.ArgumentParser, names: Sequence[str], given: Sequence[str]
) -> str | None:
    """The error of the value after one of the options `names`, if its type raises one."""
    for name, value in itertools.pairwise(given):
        action = options._option_string_actions.get(name)
        if name in names and action is not None and callable(action.type):
            try:
                action.type(value)
            except (argparse.ArgumentTypeError, ValueError) as error:
                return f"argument {name}: {error}" if value not in spellings(options) else None
    return None


def spellings(options: argparse.ArgumentParser) -> list[str]:
    """The long options, without deprecated ones that only name their successors."""
    return [
        name
        for action in options._actions
        if not isinstance(action, Renamed)
        for name in action.option_strings
        if name.startswith("--")
    ]


class Renamed(argparse.Action):
    """An option of earlier versions or of other verbs: an error that names the one to use."""

    def __init__(self, option_strings: Sequence[str], dest: str, *, now: str) -> None:
        super().__init__(option_strings, argparse.SUPPRESS, nargs="?", help=argparse.SUPPRESS)
        self._now = now

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> NoReturn:
        name = (option_string or self.option_strings[0]).lstrip("-")
        raise InputError(
            f"--{name}: this option is called {self._now} here (see `{parser.prog} --help`)"
        )


class Alias(Renamed):
    """An earlier spelling of the option `now` of the same parser: it works, and a line on stderr
    names the one of today."""

    def __init__(
        self, option_strings: Sequence[str], dest: str, *, now: str, **keywords: Any
    ) -> None:
        super().__init__(option_strings, dest, now=now)
        self.dest, self.nargs = now.lstrip("-").replace("-", "_"), None
        self.type = keywords.get("type")

    def __call__(  # type: ignore[override]
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        print(f"topoopt: {option_string} is now {self._now}", file=sys.stderr)
        setattr(namespace, self.dest, values)


class NamesOrFile(tuple[str, ...]):
    """Choices of argparse: names, or a function of a file of the user's."""

    def __contains__(self, value: object) -> bool:
        return isinstance(value, UserFunction) or super().__contains__(value)


def name_or_function(option: str, text: str) -> str | UserFunction:
    """argparse type of a name or FILE.py:NAME."""
    try:
        return UserFunction.load(option, text) if is_file(text) else text
    except UserFunctionError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def rate(text: str) -> float:
    """argparse type of a rate with a unit, in Gb/s."""
    if text.startswith("-"):
        raise argparse.ArgumentTypeError(f"bandwidth: {text} is negative; write a rate, as 25Gbps")
    try:
        return parse_gbps(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"bandwidth: {error}") from None


def micro_batches(text: str) -> MicroBatches:
    """argparse type of "4", "1,4,8" or "auto"; one number is not in a tuple."""
    if text == "auto":
        return "auto"
    parts = text.split(",")
    if not all(part.isascii() and part.isdigit() for part in parts):
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a number, several with commas (1,4,8), or auto"
        )
    counts = tuple(int(part) for part in parts)
    return counts[0] if len(counts) == 1 else counts


def make_cluster(
    servers: int,
    degree: int,
    link_gbps: float,
    ports: str,
    accelerator: str,
    accelerators_per_server: int = 1,
    *,
    parallel_links: bool = False,
    memory_limited: bool = True,
) -> Cluster:
    """The Cluster that the options describe; raises InputError or DocumentError if it cannot be."""
    from torch_topoopt.plan import Cluster

    check_accelerator(accelerator)
    return Cluster(
        servers=servers,
        degree=degree,
        link_gbps=link_gbps,
        ports="simplex" if ports == "simplex" else "duplex",
        accelerators_per_server=accelerators_per_server,
        accelerator=accelerator,
        parallel_links=parallel_links,
        memory_limited=memory_limited,
    ).validate()


def check_accelerator(name: str) -> None:
    """Raises InputError for one that is not in the table."""
    from torch_topoopt.search.accelerators import accelerator

    with input_errors():
        accelerator(name)
