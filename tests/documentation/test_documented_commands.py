"""Every command of the README and of docs/ works, as it is printed."""

from __future__ import annotations

import os
import re
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pages import ROOT, Command, blocks, commands, pages
from rules import ELSEWHERE, GIVEN, SMALLER, WHOLE, smaller
from support.plain_namespaces import Namespaces
from workshop import Outcome, Workshop

if TYPE_CHECKING:
    from collections.abc import Iterator

_MAKE_TARGETS = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
_helps: set[str] = set()  # that were printed: every page names verbs
_INCOMPLETE = re.compile(
    r"the following arguments are required|expected (one|at least one) arg|: missing; "
)


@pytest.fixture(scope="module")
def workshop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workshop]:
    with Workshop(tmp_path_factory.mktemp("workshop")) as opened:
        yield opened


def _elsewhere(command: Command) -> bool:
    return any(re.search(rule.pattern, command.text) for rule in ELSEWHERE)


def _tested_by_itself(text: str) -> bool:
    """Whether this suite runs it anyway: `make` its targets, `pytest` its own tests."""
    program, *arguments = shlex.split(text)
    if program == "make":
        return all(word in _MAKE_TARGETS for word in arguments if "=" not in word)
    if program == "pytest":
        return all((ROOT / word).exists() for word in arguments if word.startswith("tests/"))
    return False


def _works(workshop: Workshop, command: Command) -> str:
    """Runs a command; what is wrong with it, or nothing."""
    text = smaller(command.page, command.text)
    if command.inline and re.fullmatch(r"topoopt [a-z][a-z-]*( [a-z]+)?", text):
        text += " --help"  # the name of a verb
    if text in _helps:
        return ""
    outcome = workshop.run(text)
    if outcome.code == 0:
        if text.endswith(" --help"):
            _helps.add(text)
        return ""
    if command.inline and _INCOMPLETE.search(outcome.output):
        return _unknown_options(workshop, text)
    shown = "\n    ".join(outcome.output.splitlines()[-12:])
    return f"{command}\n    ran as: {text}\n    exit code {outcome.code}\n    {shown}"


def _unknown_options(workshop: Workshop, text: str) -> str:
    """A form, such as `topoopt plan --cluster`: its options are those of the verb."""
    words = text.split()
    verb = [word for word in words[1:3] if re.fullmatch(r"[a-z][a-z-]*", word)]
    options = {word.split("=")[0] for word in words if word.startswith("--")}
    helps: list[Outcome] = []
    for name in (verb, verb[:1]):
        helps.append(workshop.run(f"topoopt {' '.join(name)} --help"))
        if helps[-1].code == 0:
            unknown = [option for option in options if option not in helps[-1].output]
            return f"{text}: {', '.join(unknown)} is no option" if unknown else ""
    return f"{text}: no such verb"


def _here(page: str, *, benchmarks: bool) -> list[Command]:
    """The commands of a page that are run by the tests below, those with sudo only as root."""
    return [
        command
        for command in commands(page)
        if page not in WHOLE
        and ("benchmarks/" in command.text) == benchmarks
        and not _elsewhere(command)
        and not _tested_by_itself(command.text)
        and (os.geteuid() == 0 or "sudo " not in command.text)
    ]


@pytest.mark.parametrize("page", [page for page in pages() if _here(page, benchmarks=False)])
@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_commands_of_a_page_work_from_top_to_bottom(page: str, workshop: Workshop) -> None:
    workshop.clear()
    for rule in GIVEN:
        if rule.page == page:
            (workshop.folder / rule.file).write_text(rule.text())
    wrong = [_works(workshop, command) for command in _here(page, benchmarks=False)]
    assert not any(wrong), "\n".join(filter(None, wrong))


_BENCHMARKS = {
    smaller(page, command.text): command
    for page in pages()
    for command in _here(page, benchmarks=True)
}


@pytest.mark.exhaustive
@pytest.mark.parametrize("text", _BENCHMARKS)
def test_benchmarks_start_as_printed(text: str, workshop: Workshop) -> None:
    workshop.clear()
    wrong = _works(workshop, _BENCHMARKS[text])
    assert not wrong, wrong


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


def test_rules_are_needed_and_the_tests_that_they_name_exist() -> None:
    printed = [command for page in pages() for command in commands(page)]
    for rule in ELSEWHERE:
        assert any(re.search(rule.pattern, command.text) for command in printed), rule
        path, _, function = rule.tests.partition("::")
        assert (ROOT / path).is_file(), rule
        assert f"def {function}" in (ROOT / path).read_text(), rule
    for page, test in WHOLE.items():
        assert page in pages()
        assert Path(page).name in (ROOT / test).read_text(), f"{test} does not run {page}"
    for smaller_rule in SMALLER:
        assert any(
            re.fullmatch(smaller_rule.pages, command.page)
            and re.search(smaller_rule.pattern, command.text)
            for command in printed
        ), smaller_rule


@pytest.mark.parametrize("page", pages())
def test_python_on_a_page_compiles(page: str) -> None:
    for language, line, lines in blocks(page):
        if language == "python":
            indent = min((len(x) - len(x.lstrip()) for x in lines if x.strip()), default=0)
            compile("\n".join(x[indent:] for x in lines), f"{page}:{line}", "exec")


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
    lines = (ROOT / "README.md").read_text().splitlines()
    assert len(lines) <= 120
    cells = [cell for line in lines if line.startswith("|") for cell in line.split("|")]
    assert not [cell for cell in cells if len(cell.split()) > 15]


def test_a_command_that_fails_is_reported(workshop: Workshop, tmp_path: Path) -> None:
    command = Command("README.md", 1, "topoopt plan no-such-model", inline=False)
    assert "no-such-model" in _works(workshop, command)
    form = Command("README.md", 1, "topoopt plan --no-such-option", inline=True)
    assert "--no-such-option" in _works(workshop, form)
