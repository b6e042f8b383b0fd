"""The table of link options: values and checks, by variable and by flag."""

from __future__ import annotations

import dataclasses

import pytest
from support.refusals import refused

from torch_topoopt.links.errors import FabricError
from torch_topoopt.links.options import LINK_OPTIONS, PLAIN, LinkOption, RequestedLinks

VALUES = {
    "TOPOOPT_ENCRYPT": {"0": False, "1": True},
    "TOPOOPT_TRANSPORT": {"tcp": "tcp", "auto": "auto", "fabric:verbs": "fabric:verbs"},
    "TOPOOPT_CONNECTIONS": {"auto": None, "1": 1, "4": 4, "16": 16},
    "TOPOOPT_LINK_THREADS": {"0": False, "1": True},
    "TOPOOPT_REDUCE_THREADS": {"0": 0, "3": 3, "64": 64},
    "TOPOOPT_ZERO_COPY": {"0": "off", "1": "on", "always": "always"},
}
WRONG = {
    "TOPOOPT_TRANSPORT": ("rdma", "TCP"),
    "TOPOOPT_CONNECTIONS": ("0", "17", "-1", "2.5", "four"),
    "TOPOOPT_REDUCE_THREADS": ("65", "-1", "2.5", "two"),
}


@pytest.fixture(params=LINK_OPTIONS, ids=lambda option: option.flag)
def option(request: pytest.FixtureRequest) -> LinkOption:
    return request.param


def test_every_field_has_one_option_and_its_value_without_one() -> None:
    fields = {field.name for field in dataclasses.fields(RequestedLinks)}
    assert [*VALUES] == [option.variable for option in LINK_OPTIONS]
    assert {option.field for option in LINK_OPTIONS} == fields - {"why_single"}
    assert RequestedLinks.of({}) == PLAIN


def test_the_variable_has_these_values(option: LinkOption) -> None:
    for text, value in VALUES[option.variable].items():
        requested = RequestedLinks.of({option.variable: text})
        assert getattr(requested, option.field) == value
    default = next(iter(VALUES[option.variable]))
    assert RequestedLinks.of({option.variable: default}) == PLAIN


def test_another_value_is_one_line_that_names_it_and_the_option(option: LinkOption) -> None:
    for text in ("", *WRONG.get(option.variable, ("2", "yes"))):
        for by_flag, name in ((False, option.variable), (True, option.flag)):
            with refused(FabricError, name, f"'{text}'", *option.words):
                RequestedLinks.of({option.variable: text}, by_flag=by_flag)


@pytest.mark.parametrize(
    ("flag", "text", "others", "why"),
    [
        ("transport", "auto", {"TOPOOPT_ENCRYPT": "1"}, "over auto"),
        ("connections", "2", {"TOPOOPT_TRANSPORT": "fabric:tcp"}, "over fabric:tcp"),
        ("connections", "2", {"TOPOOPT_CONTROLLER": "somewhere"}, "controller"),
        ("connections", "2", {"TOPOOPT_CIRCUITS": "somewhere"}, "circuits"),
        ("link-threads", "1", {"TOPOOPT_TRANSPORT": "fabric:tcp"}, "over fabric:tcp"),
        ("link-threads", "1", {"TOPOOPT_ENCRYPT": "1"}, "encrypted"),
        ("zero-copy", "always", {"TOPOOPT_TRANSPORT": "auto"}, "over auto"),
        ("zero-copy", "1", {"TOPOOPT_ENCRYPT": "1"}, "encrypted"),
    ],
)
def test_options_that_exclude_each_other_are_one_line_on_both_sides(
    flag: str, text: str, others: dict[str, str], why: str
) -> None:
    option = next(option for option in LINK_OPTIONS if option.flag == flag)
    for by_flag, name in ((False, option.variable), (True, flag)):
        with refused(FabricError, name, why, "leave it out"):
            RequestedLinks.of({option.variable: text} | others, by_flag=by_flag)
    usual = {"transport": "tcp", "connections": "1"}.get(flag, "0")
    RequestedLinks.of({option.variable: usual} | others)
    RequestedLinks.of(others)
