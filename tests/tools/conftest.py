from support.json_output import _results_match_their_schemas  # noqa: F401 - a fixture
