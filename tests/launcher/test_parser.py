"""The error of a wrong option, with every verb."""

from __future__ import annotations

import pytest

from torch_topoopt.launcher.main import main


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("plan vgg --sevrers 4", "--sevrers: there is no such option; did you mean --servers?"),
        ("topology --sevrers=4", "--sevrers: there is no such option; did you mean --servers?"),
        ("run --sevrers 4 x.py", "--sevrers: there is no such option; did you mean --servers?"),
        ("run --nproc-per-nodes 4 x.py", "did you mean --nproc-per-node?"),
        ("plan vgg --frobnicate", "--frobnicate: there is no such option (see `topoopt plan"),
        ("completion --fast 4 bash", "--fast: there is no such option (see `topoopt completion"),
        ("completion csh", "argument SHELL: invalid choice: 'csh'"),
        ("plan vgg more", "unrecognized arguments: more (see"),
        ("plan vgg --bandwidth -5Mbps", "bandwidth: -5Mbps is negative; write a rate, as 25Gbps"),
        ("plan vgg --bandwidth=-5Mbps", "bandwidth: -5Mbps is negative; write a rate, as 25Gbps"),
        ("run --bandwidth -5Mbps x.py", "bandwidth: -5Mbps is negative; write a rate, as 25Gbps"),
        ("plan vgg --bandwidth --ports duplex", "argument --bandwidth: expected one argument"),
        ("plan vgg --bandwidth 200", "error: bandwidth: '200' has no unit; write 200Gbps"),
    ],
)
def test_one_line_says_what_is_wrong(
    arguments: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments.split()) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
