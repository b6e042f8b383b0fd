"""The JSON Schema of every verb; tests/support/json_output.py checks what verbs print by it."""

from __future__ import annotations

import pytest
from json_schemas import RESULTS, result_schema, schema
from jsonschema import Draft202012Validator, ValidationError

from torch_topoopt.launcher.completion import parser_of, sub_verbs_of
from torch_topoopt.launcher.main import VERBS
from torch_topoopt.plan.network import Ring
from torch_topoopt.plan.result_json import plain


def test_every_verb_with_json_has_a_schema() -> None:
    commands = {
        f"{verb} {sub}".strip(): parser_of(verb, sub)
        for verb in VERBS
        for sub in sub_verbs_of(verb) or [""]
    }
    with_json = {name for name, options in commands.items() if "--json" in options.format_help()}
    assert with_json == RESULTS.keys()


@pytest.mark.parametrize("command", RESULTS)
def test_schemas_are_those_of_the_draft(command: str) -> None:
    found = result_schema(command)
    Draft202012Validator.check_schema(found)
    assert all(value["additionalProperties"] is False for value in found["$defs"].values())


def test_a_schema_takes_what_is_written_and_nothing_else() -> None:
    validator = Draft202012Validator(schema(Ring))
    written = plain(Ring((0, 2, 1), 0.5))
    assert written == {"stride": 2, "share": 0.5}
    validator.validate(written)
    validator.validate(written | {"stride": None})
    for wrong in ({"stride": 2}, written | {"share": "half"}, written | {"servers": [0]}):
        with pytest.raises(ValidationError):
            validator.validate(wrong)
