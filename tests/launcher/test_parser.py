"""The error of a wrong option, with every verb."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import NoReturn

import pytest
from support.launcher import COMMAND
from support.limits import limit_s
from support.refusals import named

from torch_topoopt.launcher import documents, parser
from torch_topoopt.launcher.main import main


@pytest.mark.parametrize(
    ("arguments", "tokens"),
    [
        ("plan vgg --sevrers 4", ("--sevrers", "--servers")),
        ("topology --sevrers=4", ("--sevrers", "--servers")),
        ("run --sevrers 4 x.py", ("--sevrers", "--servers")),
        ("run --nproc-per-nodes 4 x.py", ("--nproc-per-node",)),
        ("plan vgg --frobnicate", ("--frobnicate", "topoopt")),
        ("completion --fast 4 bash", ("--fast", "topoopt")),
        ("completion csh", ("SHELL", "choice", "csh")),
        ("plan vgg --servers 0", ("error", "--servers", 1)),
        ("plan vgg", ("error", "--servers", "missing")),
        ("plan vgg --servers 4 --batch-size 0", ("error", "--batch-size", 1, 0)),
        ("plan vgg --servers 4 --evaluations -1", ("error", "--evaluations", -1)),
        ("plan vgg --servers 4 --rounds 0", ("error", "--rounds", 1)),
        ("plan vgg --servers 4 --chains 0", ("error", "--chains", 1, 0)),
        ("plan vgg --servers 4 --costs none.json", ("error", "--costs", "none.json")),
        (
            "plan vgg --servers 4 -o no/x.json",
            ("error", "--output", "no/x.json"),
        ),
        ("plan vgg --servers 4 -o /", ("error", "--output", "/")),
        ("plan vgg --servers 4 --export-strategy no/x", ("error", "--export-strategy", "no/x")),
        ("profile vgg -o no/x.json", ("error", "--output", "no/x.json")),
        ("advise --degree 2", ("error", "--servers")),
        ("advise --servers 4 --degree 2 --bandwidth 1Gbps -o /dev/null/x", ("/dev/null", "folder")),
        ("cluster submit", ("required", "SCRIPT")),
        ("cluster submit x.py --cluster lab.yaml", ("--cluster", "x.py")),
        ("inspect no-run", ("error", "no-run")),
        ("plan vgg more", ("unrecognized arguments", "more")),
        ("plan vgg --bandwidth -5Mbps", ("bandwidth", "-5Mbps", "25Gbps")),
        ("plan vgg --bandwidth=-5Mbps", ("bandwidth", "-5Mbps", "25Gbps")),
        ("run --bandwidth -5Mbps x.py", ("bandwidth", "-5Mbps", "25Gbps")),
        ("plan vgg --bandwidth --ports duplex", ("--bandwidth", "argument")),
        ("plan vgg --bandwidth 200", ("error", "--bandwidth", 200, "200Gbps")),
    ],
)
def test_one_line_says_what_is_wrong(
    arguments: str, tokens: tuple[object, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments.split()) == 2
    error = capsys.readouterr().err
    assert named(error, *tokens)
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    "arguments", ["plan vgg --servers 4 --batch-size 0", "plan vgg --servers 4 -o no/x.json"]
)
def test_nothing_is_profiled_for_options_that_cannot_work(
    arguments: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def profile(*_: object, **__: object) -> NoReturn:
        pytest.fail("it was profiled")

    monkeypatch.setattr(documents, "op_graph_of", profile)
    assert main(arguments.split()) == 2


def test_a_field_of_a_document_is_not_spelt_as_an_option() -> None:
    parser.use(parser.Parser("plan", "", ""), ["--servers", "4"])
    assert parser.as_option("servers: must be at least 1") == "servers: must be at least 1"
    options = parser.Parser("plan", "", "")
    options.add_argument("-o", "--output")
    options.add_argument("--batch-size")
    options.parse_args(["-ofile"])
    assert parser.as_option("output: file: no") == "--output: file: no"
    assert parser.as_option("batch_size: 0") == "batch_size: 0"
    assert parser.as_option("batch_size: missing") == "--batch-size: missing"
    assert parser.as_option("plan.json: output: no") == "plan.json: output: no"


FULL = Path("/dev/full")


@pytest.mark.skipif(not FULL.exists(), reason="there is no /dev/full")
@pytest.mark.parametrize(
    "arguments",
    [
        "--help",
        "--version",
        "plan --help",
        "advise --servers 4 --degree 2 --bandwidth 25Gbps",
        "advise --servers 4 --degree 2 --bandwidth 25Gbps --json",
    ],
)
def test_an_output_that_is_full_is_one_line(arguments: str) -> None:
    with FULL.open("w") as full:
        done = subprocess.run(
            [*COMMAND, *arguments.split()],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=limit_s(100),
            check=False,
        )
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert named(done.stderr, "standard output")
