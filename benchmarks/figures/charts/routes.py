"""Figures 4, 5, 6 and 8 of "Routing for Large ML Models": schemes of route control."""

from __future__ import annotations

from collections import defaultdict
from functools import partial
from statistics import fmean
from typing import TYPE_CHECKING, Any

from figures import plots
from figures.cell import Cell
from figures.figure import Figure, Made, Quantity

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

    from figures.figure import Results

_MODELS = ("bloom", "gpt-3", "llama2-70b")
_SCHEMES = ("ecmp", "annealing", "greedy", "local-search", "exact")
_METRICS = ("all_reduce_s", "completion_s", "flow_gbps")
_MOST_JOBS = {2: 5, 4: 5, 8: 3}  # by copies: more do not fit into 2 048 hosts whatever they are

# Mean seconds of AllReduce of the first job in the results of the authors' code, a BLOOM, by (jobs,
# copies) and scheme; colouring is theirs as it is ours where no link is dead.
_PUBLISHED = {
    (1, 2): {"ecmp": 4.693, "annealing": 4.267, "greedy": 1.1733, "local-search": 1.1733},
    (1, 4): {"ecmp": 7.040, "annealing": 7.200, "greedy": 1.7600, "local-search": 1.7600},
    (5, 2): {"ecmp": 4.693, "annealing": 2.867, "greedy": 1.3569, "local-search": 1.1788},
    (5, 4): {"ecmp": 7.433, "greedy": 1.8083, "local-search": 1.8193},
}
_REASONS = {
    "ecmp": "a link has four flows in their one placement, three or more in our mean of five",
    "annealing": "theirs gives all flows to a host one spine; here each flow moves by itself",
    "greedy": "two flows meet on a link in one of our five placements; they have one placement",
}


def _cell(model: str, jobs: int, copies: int, quick: bool, **other: Any) -> Cell:
    parameters = {
        **{"model": model, "jobs": jobs, "copies": copies, "placed_by": "racks"},
        **{"failed_spines": 0, "fail_at_s": 0.0, "schemes": list(_SCHEMES), "in_rounds": True},
        **{"draws": 1 if quick else 5, "iterations": 2 if quick else 5, "seed": 0},
    }
    return Cell.of("figures.cells.routes:job_times", **{**parameters, **other})


def _cells(quick: bool) -> list[Cell]:
    models = _MODELS[:1] if quick else _MODELS
    found = [
        _cell(model, jobs, copies, quick)
        for copies, most in _MOST_JOBS.items()
        for jobs in ((1, most) if quick else range(1, most + 1))
        for model in models
    ]
    scattered = {"placed_by": "hosts", "schemes": list(_SCHEMES[:-1])}
    found += [_cell(model, 5, 4, quick, **scattered) for model in models]
    return [*found, *(_cell(model, 5, 4, quick, in_rounds=False) for model in models)]


def _is_main(parameters: dict[str, Any]) -> bool:
    return bool(parameters["placed_by"] == "racks" and parameters["in_rounds"])


def _ratios(results: Results, metric: str) -> dict[tuple[str, int, int], list[float]]:
    """By scheme, copies and jobs: the metric over that of the exact optimum, every draw."""
    place = _METRICS.index(metric)
    found: dict[tuple[str, int, int], list[float]] = defaultdict(list)
    for p, row in results:
        if _is_main(p):
            for scheme, draws in row["schemes"].items():
                pairs = zip(draws, row["schemes"]["exact"], strict=True)
                over = [of[place] / best[place] for of, best in pairs]
                found[scheme, p["copies"], p["jobs"]] += over
    return found


def _make(results: Results, quick: bool, *, metric: str, name: str) -> Made:
    ratios = _ratios(results, metric)

    def draw(canvas: Canvas) -> None:
        for axes, copies in zip(canvas.subplots(1, len(_MOST_JOBS)), _MOST_JOBS, strict=True):
            curves = {
                scheme: [
                    (jobs, fmean(over))
                    for (of, rings, jobs), over in sorted(ratios.items())
                    if (of, rings) == (scheme, copies)
                ]
                for scheme in _SCHEMES[:-1]
            }
            plots.lines(axes, curves, "jobs", f"{name} / exact optimum")
            axes.set_title(f"rings of {copies}", fontsize=9)
            axes.set_xticks([jobs for jobs, _ in curves["local-search"]])
        plots.legend_below(canvas, axes, 4)

    quantities = []
    for scheme in _SCHEMES[:-1]:
        for copies in _MOST_JOBS:
            over = [x for key, xs in ratios.items() if key[:2] == (scheme, copies) for x in xs]
            farthest = max(over, key=lambda ratio: abs(ratio - 1))
            what = f"{name} / exact optimum, rings of {copies}"
            quantities.append(Quantity(f"{what}, mean", fmean(over), mode=scheme))
            quantities.append(Quantity(f"{what}, farthest", farthest, mode=scheme))
    quantities += _variants(results, metric, name)
    if metric == "all_reduce_s":
        quantities += _beside_published(results)
    return Made(_csv(results), draw, quantities, (9.0, 4.0))


def _variants(results: Results, metric: str, name: str) -> list[Quantity]:
    """Where parts are on any hosts, and where rings have no rounds. In the former the integer
    program takes too long; ours is the optimum by Koenig's theorem."""
    place = _METRICS.index(metric)
    found = []
    for title, best, chosen in (
        ("parts on any hosts, jobs: 5, rings of 4", "local-search", "hosts"),
        ("no rounds, jobs: 5, rings of 4", "exact", "racks"),
    ):
        rows = [r for p, r in results if not _is_main(p) and p["placed_by"] == chosen]
        for scheme in _SCHEMES[:3]:
            over = [
                of[place] / one[place]
                for row in rows
                for of, one in zip(row["schemes"][scheme], row["schemes"][best], strict=True)
            ]
            found.append(Quantity(f"{name} / exact optimum, {title}", fmean(over), mode=scheme))
    return found


def _beside_published(results: Results) -> list[Quantity]:
    found = []
    for p, row in results:
        published = _PUBLISHED.get((p["jobs"], p["copies"]), {})
        if p["model"] != "bloom" or not _is_main(p):
            continue
        for scheme, paper_s in published.items():
            ours_s = fmean(draw[0] for draw in row["schemes"][scheme])
            what = f"AllReduce (s), jobs: {p['jobs']}, rings of {p['copies']}; paper: their code"
            reason = _REASONS.get(scheme, "another placement")
            found.append(Quantity(what, ours_s, paper_s, "bloom", scheme, reason))
    return found


def _csv(results: Results) -> list[dict[str, Any]]:
    named = ("model", "jobs", "copies", "placed_by", "in_rounds", "failed_spines", "fail_at_s")
    return [
        {
            **{name: p[name] for name in named},
            **{"scheme": scheme, "draw": draw, "compute_s": row["compute_s"]},
            **dict(zip(_METRICS, values, strict=True)),
        }
        for p, row in results
        for scheme, draws in row["schemes"].items()
        for draw, values in enumerate(draws)
    ]


_LATER_S = 12.0  # after all jobs arrived


def _failing(quick: bool) -> list[Cell]:
    spines = (0, 4) if quick else (0, 1, 4, 8)
    models = _MODELS[:1] if quick else _MODELS
    return [
        *(
            _cell(model, jobs, copies, quick, failed_spines=failed)
            for model in models
            for jobs, copies in ((1, 2), (3, 4))
            for failed in spines
        ),
        *(
            _cell(model, 3, 4, quick, failed_spines=spines[-1], fail_at_s=_LATER_S)
            for model in models
        ),
        *(
            Cell.of(
                "figures.cells.routes:dead_link_loads",
                **{"jobs": 3, "copies": 4, "dead": dead, "draws": 1 if quick else 5, "seed": 0},
            )
            for dead in (64, 256)
        ),
    ]


def _make_failing(results: Results, quick: bool) -> Made:
    rows = [(p, row) for p, row in results if "model" in p]
    from_start = [(p, row) for p, row in rows if p["fail_at_s"] == 0]
    sizes = sorted({(p["jobs"], p["copies"]) for p, _ in from_start})
    seconds: dict[tuple[str, int, int, int], list[float]] = defaultdict(list)
    for p, row in from_start:
        for scheme, draws in row["schemes"].items():
            key = scheme, p["jobs"], p["copies"], p["failed_spines"]
            seconds[key] += [
                draw[0] / best[0] for draw, best in zip(draws, _whole(rows, p), strict=True)
            ]

    def draw(canvas: Canvas) -> None:
        for axes, (jobs, copies) in zip(canvas.subplots(1, len(sizes)), sizes, strict=True):
            curves = {
                scheme: [
                    (key[3], fmean(over))
                    for key, over in sorted(seconds.items())
                    if key[:3] == (scheme, jobs, copies)
                ]
                for scheme in _SCHEMES
            }
            plots.lines(axes, curves, "dead spines of 32", "AllReduce over exact, none dead")
            axes.set_title(f"jobs: {jobs}, rings of {copies}", fontsize=9)
        plots.legend_below(canvas, axes, 5)

    quantities = []
    for (scheme, jobs, copies, failed), over in seconds.items():
        if scheme != "exact":
            over_exact = fmean(over) / fmean(seconds["exact", jobs, copies, failed])
            what = (
                f"AllReduce / exact optimum, {failed} spines dead, jobs: {jobs}, rings of {copies}"
            )
            quantities.append(Quantity(what, over_exact, mode=scheme))
    quantities += _later(rows) + _dead_links(results)
    return Made(_csv(rows), draw, quantities, (8.5, 4.0))


def _whole(rows: Results, parameters: dict[str, Any]) -> Any:
    """Of the same jobs the exact optimum where no spine is dead."""
    same = ("model", "jobs", "copies")
    return next(
        row["schemes"]["exact"]
        for p, row in rows
        if p["failed_spines"] == 0 and all(p[name] == parameters[name] for name in same)
    )


def _later(rows: Results) -> list[Quantity]:
    later = [(p, row) for p, row in rows if p["fail_at_s"] > 0]
    found = []
    for scheme in _SCHEMES[:-1]:
        over = [
            draw[0] / best[0]
            for _, row in later
            for draw, best in zip(row["schemes"][scheme], row["schemes"]["exact"], strict=True)
        ]
        what = f"AllReduce / exact optimum, {later[0][0]['failed_spines']} spines die as jobs run"
        found.append(Quantity(what, fmean(over), mode=scheme))
    return found


def _dead_links(results: Results) -> list[Quantity]:
    return [
        Quantity(
            f"busiest link / exact optimum, {p['dead']} dead links of 2 048",
            fmean(load / best for load, best in zip(row[scheme], row["exact"], strict=True)),
            mode=scheme,
        )
        for p, row in results
        if "dead" in p
        for scheme in ("ecmp", "greedy", "local-search")
    ]


_NAMES = {
    "4": ("all_reduce_s", "AllReduce time"),
    "5": ("completion_s", "flow completion time"),
    "6": ("flow_gbps", "throughput"),
}
FIGURES = (
    *(
        Figure(
            *(f"route-{number}", f"{name} under schemes of route control"),
            about=f'Figure {number} of "Routing for Large ML Models", 64 ToRs and 32 spines',
            cells=_cells,
            make=partial(_make, metric=metric, name=name),
            full="5 draws of 5 iterations",
            quick="BLOOM, one draw of 2 iterations",
        )
        for number, (metric, name) in _NAMES.items()
    ),
    Figure(
        *("route-8", "AllReduce time where spines are dead"),
        about='Figure 8 of "Routing for Large ML Models", 64 ToRs and 32 spines',
        cells=_failing,
        make=_make_failing,
        full="5 draws of 5 iterations",
        quick="BLOOM, one draw of 2 iterations",
    ),
)
