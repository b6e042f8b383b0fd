"""Defaults of planning; apart, so that `--help` need not load the planner."""

DEFAULT_ROUNDS = 4
DEFAULT_EVALUATIONS = 50_000  # proposals a round
DEFAULT_CHAINS = 4  # of the search, side by side
