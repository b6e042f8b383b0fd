"""The check of what verbs print with --json: every result matches the schema of its class."""

from __future__ import annotations

import json
from typing import Any

import pytest

from torch_topoopt.launcher import console
from torch_topoopt.launcher.json_results import RESULTS, result_classes
from torch_topoopt.plan.result_json import plain
from torch_topoopt.plan.result_schema import schema


@pytest.fixture(autouse=True)
def _results_match_their_schemas(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also that a verb prints classes that `json_results` knows, or dicts without a class."""
    print_json = console.print_json

    def checked(result: object, *text: Any) -> None:
        if not isinstance(result, dict):
            from jsonschema import Draft202012Validator

            assert type(result) in {cls for command in RESULTS for cls in result_classes(command)}
            value = json.loads(json.dumps(plain(result)))
            Draft202012Validator(schema(type(result))).validate(value)
        print_json(result, *text)

    monkeypatch.setattr(console, "print_json", checked)
