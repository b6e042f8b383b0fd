"""The check of what verbs print with --json: every result matches the schema of its class."""

from __future__ import annotations

import json
from typing import Any

from json_schemas import RESULTS, result_classes, schema
from jsonschema import Draft202012Validator

from torch_topoopt.launcher import console
from torch_topoopt.plan.result_json import plain

_print_json = console.print_json


def checked_print_json(result: object, *text: Any) -> None:
    """Also checks that `json_schemas` knows the class; a dict has none."""
    if not isinstance(result, dict):
        assert type(result) in {cls for command in RESULTS for cls in result_classes(command)}
        value = json.loads(json.dumps(plain(result)))
        Draft202012Validator(schema(type(result))).validate(value)
    _print_json(result, *text)
