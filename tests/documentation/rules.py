"""Rules for commands of the documentation that cannot run here as they are printed.

Everything that no rule names runs as it stands, page by page, from top to bottom. A rule must match
some command, else it is out of date and the test fails.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from pages import blocks

HERE = "tests/documentation/test_documented_commands.py"


class Smaller(NamedTuple):
    """Written so that it runs in seconds: what is replaced in commands of `pages`."""

    pages: str  # a pattern of page names
    pattern: str
    replacement: str


class Elsewhere(NamedTuple):
    """`pattern` is run by `tests`, which make its conditions (a switch, a clean machine)."""

    pattern: str
    tests: str  # a file, or file::function


class Given(NamedTuple):
    """A file that a page shows: the block of it that begins with `first_line`."""

    page: str
    file: str
    first_line: str

    def text(self) -> str:
        (lines,) = [b for _, _, b in blocks(self.page) if b and b[0].startswith(self.first_line)]
        return "\n".join(lines) + "\n"


GIVEN = (
    Given("docs/planning/simulators.md", "ring.txt", "nodes 3 hosts 2"),
    Given("docs/planning/simulators.md", "jobs.json", '{"version": 1,'),
    Given("docs/planning/profiling.md", "models.py", "# models.py"),
    Given("docs/guides/routes.md", "flows.json", "[[0, 1], [0, 2]"),
    Given("docs/guides/routes.md", "dead.json", "[[0, 1], [3, 0]]"),
    Given("docs/guides/routes.md", "routed.json", '{"version": 1, "tors"'),
    Given("docs/planning/allocation.md", "jobs.json", '[{"name": "a", "shape": "2x3"}'),
    Given("docs/guides/nccl.md", "sparks.yaml", "version: 1"),
    Given("docs/guides/extending.md", "mine.py", "# mine.py"),
    Given("docs/guides/extending.md", "twin.py", "# twin.py"),
)

# Pages that another test runs whole.
WHOLE = {
    "docs/guides/recipes.md": "tests/launcher/test_recipes.py",
    "docs/guides/rehearsal.md": "tests/launcher/test_rehearsal.py",
}

SMALLER = (
    Smaller(".*", r"--servers 128 --degree 8", "--servers 8 --degree 4"),
    Smaller(".*", r"--servers (32|64|128|512|4096)\b", "--servers 8"),
    Smaller(".*", r"\b(plan|compare) (dlrm|vgg) ", r"\1 \2:tiny "),
    Smaller(
        ".*",
        r"\b(plan|compare) (dlrm|vgg):tiny (?!.*--evaluations)",
        r"\1 \2:tiny --evaluations 200 ",
    ),
    Smaller(
        ".*",
        r"((run --fabric netns|fabric up) .*)--servers 12 --degree 4",
        r"\1--servers 4 --degree 2",
    ),
    Smaller(".*", r"--epochs 5", "--epochs 1"),
    Smaller(".*", r"--record$", "--record results.json"),
    Smaller(".*", r"(benchmarks/dispatch\.py.*)", r"\1 --calls 200 --rounds 1"),
    Smaller(".*", r"(examples/checkpoint\.py)", r"\1 --steps 20 --every 10"),
    Smaller(".*", r"(examples/digits\.py)", r"\1 --epochs 1 --target-accuracy 0"),
    Smaller(
        ".*",
        r"--servers 8 --degree (4|6) --bandwidth \w+ (.*)(examples/(?:dlrm|pipeline)\.py)",
        r"--servers 4 --degree 3 --bandwidth 100Mbps \2\3 --steps 4",
    ),
    Smaller(
        ".*", r"(benchmarks/collectives\.py.*)", r"\1 -b 64 -e 64 --rounds 1 --round_seconds 0.05"
    ),
    Smaller(".*", r"(benchmarks/collectives\.py --on (shared|loopback).*)", r"\1 --peers gloo"),
    Smaller(".*", r"--ranks 12 --degree 4", "--ranks 3 --degree 2"),
    Smaller(
        ".*",
        r"(benchmarks/fabric_links\.py.*)",
        r"\1 --links tcp --size 64kB --seconds 0.05 --rounds 1 --no-peer",
    ),
    Smaller(".*", r"(benchmarks/links\.py.*)", r"\1 --message-bytes 64K --seconds 0.05 --rounds 1"),
    Smaller(".*", r"(benchmarks/overlap\.py.*)", r"\1 --rounds 1 --layers 2 --width 64 --ranks 2"),
    Smaller(
        ".*",
        r"benchmarks/overhead\.py",
        "benchmarks/overhead.py --operations 200 --start-ranks 2 --idle-seconds 0.1 --rounds 1",
    ),
    Smaller(".*", r"benchmarks/topology\.py.*", "benchmarks/topology.py -n 8 -d 4 --budget 0.1"),
    Smaller(
        ".*",
        r"benchmarks/simulators\.py( -w dlrm-\d+)?",
        "benchmarks/simulators.py -w ring-16 --rounds 1",
    ),
    Smaller(
        ".*",
        r"benchmarks/profile_accuracy\.py",
        "benchmarks/profile_accuracy.py --models vgg:digits --rounds 1",
    ),
    Smaller(
        ".*",
        r"(benchmarks/architectures\.py dlrm).*",
        r"\1:tiny --servers 8 --degree 4 --bandwidths 10 --rounds 1 --evaluations 10",
    ),
    Smaller(
        ".*",
        r"benchmarks/planner\.py$",
        "benchmarks/planner.py --models ncf -n 4 -d 2 --evaluations 20 --samples 10",
    ),
    Smaller(
        ".*",
        r"benchmarks/expert_strategies\.py.*",
        "benchmarks/expert_strategies.py --models ncf:tiny -n 4 -d 2 --evaluations 20",
    ),
    Smaller(
        ".*",
        r"(benchmarks/alltoall_measured\.py).*",
        r"\1 --servers 4 --delays 0.01 --rounds 1 --bytes-per-pair 20kB",
    ),
    Smaller(
        ".*",
        r"(benchmarks/route_control_measured\.py).*",
        r"\1 --leaves 2 --size 100kB --steps 3 --rounds 1",
    ),
    Smaller(".*", r"(benchmarks/(endurance|soak)\.py)", r"\1 --minutes 0.1 --fault-every 2"),
    Smaller(
        ".*",
        r"benchmarks/alltoall\.py (cells|delays|ratios).*",
        r"benchmarks/alltoall.py \1 --servers 5 --degree 1",
    ),
    Smaller(
        ".*",
        r"benchmarks/board_allocation\.py",
        "benchmarks/board_allocation.py --boards 32x32 --rounds 1",
    ),
    Smaller(".*", r"(benchmarks/routing\.py \w+)", r"\1 --servers 8 --degree 2"),
    Smaller(
        ".*",
        r"benchmarks/prediction\.py",
        "benchmarks/prediction.py --only dlrm --bandwidth 100Mbps",
    ),
)

ELSEWHERE = (
    Elsewhere(
        r"benchmarks/alltoall\.py plot",
        "tests/benchmarks/test_alltoall_benchmark.py::test_figures_are_drawn_from_what_is_kept",
    ),
    Elsewhere(r"benchmarks/planner\.py --gaps", "tests/benchmarks/test_exhaustive_optimum.py"),
    Elsewhere(
        r"benchmarks/figures$|benchmarks/figures ([0-9]|hx-)|make figure-",
        "tests/benchmarks/test_figures_benchmark.py",
    ),
    Elsewhere(r"benchmarks/faults\.py", "tests/benchmarks/test_faults_benchmark.py"),
    Elsewhere(r"benchmarks/published_graphs\.py", "tests/benchmarks/test_published_graphs.py"),
    Elsewhere(r"run --cluster lab\.yaml --nccl", "tests/launcher/run/test_nccl_run.py"),
    Elsewhere(r"--ssh box0|run --cluster", f"{HERE}::test_the_readme_on_four_machines"),
    Elsewhere(r"discover --agent|--hostfile", "tests/launcher/fabric/test_discover.py"),
    Elsewhere(r"fabric (apply|snapshot|restore) ", "tests/launcher/fabric/test_fabric_switches.py"),
    Elsewhere(r"fabric script plan\.json", "tests/fabric/hosts/test_host_script.py"),
    Elsewhere(r"doctor --cluster", "tests/launcher/fabric/test_doctor.py"),
    Elsewhere(r"^topoopt inspect runs/", "tests/launcher/supervise/test_inspect.py"),
    Elsewhere(r"^topoopt controller --network", "tests/launcher/fabric/test_controller.py"),
    Elsewhere(
        r"topoopt (probe|fabric (up|down) clos) ?", "tests/launcher/fabric/test_probe_verb.py"
    ),
    Elsewhere(r"^topoopt status( |$)", "tests/launcher/supervise/test_status.py"),
    Elsewhere(r"^topoopt top( |$)", "tests/launcher/supervise/test_top.py"),
    Elsewhere(
        r"run .*--tensorboard",
        "tests/launcher/run/test_run.py::test_tensorboard_gets_the_plan_and_what_was_measured",
    ),
    Elsewhere(
        r"examples/sweep\.py",
        "tests/launcher/run/test_run.py::test_a_sweep_runs_without_its_server",
    ),
    Elsewhere(r"examples/gpt\.py", "tests/launcher/run/test_run.py::test_a_small_gpt_learns_text"),
    Elsewhere(r"python fit\.py", "tests/clients/test_ray_train.py::test_the_script_of_the_page"),
    Elsewhere(r"cluster (daemon|submit|status|cancel)", "tests/launcher/cluster/test_cluster.py"),
    Elsewhere(
        r"python (csrc/objects\.py|setup\.py build_ext)|ninja -t", "tests/packaging/test_objects.py"
    ),
    Elsewhere(r"tests/cpp/Makefile|build/cpp-tests", "tests/cpp/test_cpp.py"),
    Elsewhere(r"python docs/rooms\.py", "tests/test_imports.py"),
    Elsewhere(r"^pip install", "tests/packaging/test_distribution.py"),
)


def smaller(page: str, text: str) -> str:
    for rule in SMALLER:
        if re.fullmatch(rule.pages, page):
            text = re.sub(rule.pattern, rule.replacement, text)
    return text
