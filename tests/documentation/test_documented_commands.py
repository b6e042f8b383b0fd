"""Commands of the README and of docs/ that are marked to run work; all others name what exists."""

from __future__ import annotations

import os
import re
import shlex
import sys
import textwrap
from fnmatch import fnmatch
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pages import ROOT, Command, Mark, blocks, commands, files, pages
from support.plain_namespaces import Namespaces
from workshop import Workshop

from torch_topoopt.launcher.completion import parser_of, sub_verbs_of
from torch_topoopt.launcher.main import TOOLS, VERBS

if TYPE_CHECKING:
    from collections.abc import Iterator

_MAKE_TARGETS = [
    name.replace("%", "*")
    for name in re.findall(r"^([a-z0-9%-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
]
_HARNESS = "".join(path.read_text() for path in (ROOT / "benchmarks/harness").glob("*.py"))


@pytest.fixture(scope="module")
def workshop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workshop]:
    with Workshop(tmp_path_factory.mktemp("workshop")) as opened:
        yield opened


def _works(workshop: Workshop, command: Command) -> str:
    """Runs a command; returns the error, or nothing."""
    outcome = workshop.run(command.quick)
    if outcome.code == 0:
        return ""
    shown = "\n    ".join(outcome.output.splitlines()[-12:])
    return f"{command}\n    ran as: {command.quick}\n    exit code {outcome.code}\n    {shown}"


def _unknown(text: str) -> list[str]:
    """Verbs, options, files and targets of a command that do not exist."""
    words = shlex.split(re.split(r"\s(?:[|;]|&&)\s", text)[0])
    while words[0] == "sudo" or re.match(r"\w+=", words[0]):
        words.pop(0)
    program, arguments = Path(words[0]).name, words[1:]
    options = [word.partition("=")[0] for word in arguments if re.match(r"--?[A-Za-z]", word)]
    if program == "topoopt" and arguments:
        return _unknown_to_the_launcher(arguments)
    if program == "make" and "-f" not in arguments:
        targets = [word for word in arguments if word[0] != "-" and "=" not in word]
        return [t for t in targets if not any(fnmatch(t, made) for made in _MAKE_TARGETS)]
    if program == "pytest":
        return [word for word in arguments if "/" in word and not (ROOT / word).exists()]
    if program == "python" and arguments[0].startswith("benchmarks/"):
        script = ROOT / arguments[0]
        if not script.is_file():
            return [arguments[0]] if not script.is_dir() else []
        source = script.read_text() + _HARNESS
        return [option for option in options if f'"{option}"' not in source]
    return []


def _unknown_to_the_launcher(arguments: list[str]) -> list[str]:
    verb, *rest = arguments
    if verb not in VERBS:
        return [] if verb in TOOLS or verb.startswith("-") else [verb]
    sub_verb = ""
    if sub_verbs := sub_verbs_of(verb):
        if not rest:
            return []
        sub_verb, *rest = rest
        if sub_verb not in sub_verbs:
            return [sub_verb]
    if verb == "bench" and rest[:1] == ["link"]:
        sub_verb = "link.command"
    if verb == "run" or sub_verb == "submit":  # options behind the script are the script's
        scripts = [n for n, word in enumerate(rest) if word.endswith(".py")]
        rest = rest[: scripts[0]] if scripts else rest
    rest = rest[: rest.index("--")] if "--" in rest else rest
    parsers = [parser_of(verb, sub_verb)] + [parser_of("run")] * (verb == "bench")
    known = {name for made in parsers for action in made._actions for name in action.option_strings}
    options = [word.partition("=")[0] for word in rest if re.match(r"--?[A-Za-z]", word)]
    return [option for option in options if option not in known]


def _marked(page: str, *, benchmarks: bool) -> list[Command]:
    """Commands of a page that are marked to run, those with sudo only for root."""
    return [
        command
        for command in commands(page)
        if command.runs
        and ("benchmarks/" in command.text) == benchmarks
        and (os.geteuid() == 0 or "sudo " not in command.text)
    ]


@pytest.mark.parametrize("page", [page for page in pages() if _marked(page, benchmarks=False)])
@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_commands_of_a_page_work_from_top_to_bottom(page: str, workshop: Workshop) -> None:
    workshop.clear()
    for name, text in files(page).items():
        (workshop.folder / name).write_text(text)
    wrong = [_works(workshop, command) for command in _marked(page, benchmarks=False)]
    assert not any(wrong), "\n".join(filter(None, wrong))


_BENCHMARKS = {
    command.quick: command for page in pages() for command in _marked(page, benchmarks=True)
}


@pytest.mark.exhaustive
@pytest.mark.parametrize("text", _BENCHMARKS)
def test_benchmarks_start_as_printed(text: str, workshop: Workshop) -> None:
    workshop.clear()
    wrong = _works(workshop, _BENCHMARKS[text])
    assert not wrong, wrong


@pytest.mark.parametrize("page", pages())
def test_commands_of_a_page_name_what_exists(page: str) -> None:
    unknown = {str(command): _unknown(command.text) for command in commands(page)}
    assert not {command: words for command, words in unknown.items() if words}


@pytest.mark.parametrize("page", pages())
def test_every_block_of_commands_is_marked(page: str) -> None:
    missing = [f"{page}:{b.line - 1}" for b in blocks(page) if b.needs_mark and b.mark is None]
    assert not missing, (
        f'{", ".join(missing)}: put <!-- run --> or <!-- norun="reason" --> on the line before '
        "the block (docs/project/development.md)"
    )


@pytest.mark.parametrize("page", pages())
def test_marks_of_a_page_are_used_and_their_tests_exist(page: str) -> None:
    lines = [line for line in (ROOT / page).read_text().splitlines() if "`<!--" not in line]
    comments = [
        text for line in lines for text in re.findall(r"<!-- (?:run|norun|file).*?-->", line)
    ]
    assert all(Mark.parse(comment) for comment in comments), comments
    marks = {b.mark for b in blocks(page)} | {command.mark for command in commands(page)}
    assert {Mark.parse(comment) for comment in comments} == marks - {None}
    for mark in marks - {None}:
        assert mark is not None
        for path, function in re.findall(r"(tests/[\w/]+\.py)(?:::(\w+))?", mark.text):
            assert (ROOT / path).is_file(), mark
            assert f"def {function}" in (ROOT / path).read_text(), mark
        for quick in mark.quick:
            word = quick.split()[0]
            texts = [command.text for command in commands(page) if command.mark == mark]
            assert any(word in text.split() for text in texts), mark


_SSH = """\
#!/bin/sh
# Stands for ssh: box<i> is the namespace {mark}<i>, with its address on the management network.
while [ "${{1#-}}" != "$1" ]; do case $1 in -[op]) shift 2 ;; *) shift ;; esac; done
host={mark}${{1#box}}; shift
address=$(ip -n "$host" -o -4 addr show manage | awk '{{print $4}}' | cut -d/ -f1)
export PATH={programs}:$PATH SSH_CONNECTION="192.0.2.77 4242 $address 22"
exec ip netns exec "$host" sh -c "$*"
"""


@pytest.mark.timeout(600)
def test_the_readme_on_four_machines(workshop: Workshop) -> None:
    """Finds the cables of four namespaces over a substitute for ssh, and trains on them."""
    printed = [command.text for command in commands("README.md")]
    (discover,) = [text for text in printed if text.startswith("topoopt discover --ssh")]
    (train,) = [text for text in printed if text.startswith("topoopt run --cluster")]
    workshop.clear()
    with Namespaces() as namespaces:
        namespaces.add_managed(4)
        namespaces.add_cables([(0, 1), (1, 2), (2, 3), (3, 0)], "enp")
        mark = namespaces.names[0].removesuffix("0")
        workshop.program("ssh", _SSH.format(mark=mark, programs=Path(sys.executable).parent))
        found = workshop.run(discover)
        assert found.code == 0, found.output
        assert "4 cables between 4 servers" in found.output
        one_per_host = " & ".join(
            f"ip netns exec {name} {sys.executable} -m torch_topoopt.launcher.main "
            f'{train.removeprefix("topoopt ")} & pids="$pids $!"'
            for name in namespaces.names
        ).replace("& &", "&")
        done = workshop.run(f"pids=; {one_per_host}; for pid in $pids; do wait $pid; done")
    assert done.code == 0, done.output
    assert done.output.count("loss ") == 4, done.output


@pytest.mark.parametrize("page", pages())
def test_python_on_a_page_compiles(page: str) -> None:
    for block in blocks(page):
        if block.language == "python":
            compile(textwrap.dedent(block.text), f"{page}:{block.line}", "exec")


@pytest.mark.parametrize("page", pages())
def test_links_of_a_page_lead_somewhere(page: str) -> None:
    folder = (ROOT / page).parent
    text = re.sub(r"```.*?```", "", (ROOT / page).read_text(), flags=re.DOTALL)
    missing = [
        target
        for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", text)
        if not target.startswith(("http:", "https:")) and not (folder / target).exists()
    ]
    assert not missing, f"{page}: {', '.join(missing)}"


def test_the_readme_is_a_page_for_newcomers() -> None:
    text = (ROOT / "README.md").read_text()
    lines = [line for line in text.splitlines() if Mark.parse(line) is None]
    assert len(lines) <= 120
    cells = [cell for line in lines if line.startswith("|") for cell in line.split("|")]
    assert not [cell for cell in cells if len(cell.split()) > 15]


def test_a_command_that_fails_is_reported(workshop: Workshop) -> None:
    command = Command("README.md", 1, "topoopt plan no-such-model", Mark("run"))
    assert "no-such-model" in _works(workshop, command)


def test_what_a_command_names_wrongly_is_reported() -> None:
    assert _unknown("topoopt plan --no-such-option") == ["--no-such-option"]
    assert _unknown("topoopt fabric no-such-verb") == ["no-such-verb"]
    assert _unknown("sudo .venv/bin/topoopt run --watched x.py --epochs 5") == ["--watched"]
    assert _unknown("python benchmarks/links.py --no-such-option") == ["--no-such-option"]
    assert _unknown("make no-such-target") == ["no-such-target"]


def test_a_mark_is_read_and_a_wrong_one_is_not() -> None:
    quick = Mark.parse('<!-- run quick="plan --servers 8" quick="report --json" -->')
    assert quick == Mark("run", quick=("plan --servers 8", "report --json"))
    assert quick.quickly("topoopt plan vgg") == "topoopt plan vgg --servers 8"
    assert Mark.parse('<!-- norun="no switch" -->') == Mark("norun", "no switch")
    assert Mark.parse('<!-- file="ring.txt" -->') == Mark("file", "ring.txt")
    for wrong in ("<!-- norun -->", '<!-- run="x" -->', '<!-- run fast="x" -->'):
        assert Mark.parse(wrong) is None
