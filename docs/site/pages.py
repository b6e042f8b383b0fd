"""What the site has beside the pages of docs/: a hook of mkdocs (mkdocs.yml names it).

The README is its first page; CHANGELOG, CONTRIBUTING and benchmarks/README are pages, and so is
the table of the papers' figures (figures/table.json); every verb has one with its options as
`--help` prints them and the JSON Schema of its output, every public package one with its API from
the docstrings, and so has every other file of the repository that a page points to: no link leads
out of the site. Flowcharts are drawn (flowchart.py), errors.py lists every error message. The
table of measured results comes from benchmarks/results.json.
"""

from __future__ import annotations

import json
import os
import posixpath
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from mkdocs.structure.files import File, Files

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.pages import Page

# A hook has no package, and mkdocs restores the path as soon as it has loaded the hook.
sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parent))
import errors
import flowchart
import json_schemas

from figures.registry import all_figures
from figures.results_page import results_page
from harness.results import with_table

ROOT = Path(__file__).parents[2]
FIGURES = all_figures()
RESULTS = "figures/table.json"

# Pages that lie outside of docs/, by their names on the site.
ELSEWHERE = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "benchmarks/README.md": "benchmarks.md",
    RESULTS: "planning/figure-results.md",
}

# Plots that `make figures` has drawn in this checkout: the page of results shows them.
PLOTS = {
    f"figures/{plot.name}": f"planning/{plot.name}"
    for plot in sorted((ROOT / "figures").glob("figure_*.svg"))
}


class ApiPage(NamedTuple):
    """A page of the API: what it is about, and the modules or objects that it shows."""

    title: str
    shows: tuple[str, ...]


API = {
    "torch_topoopt": ApiPage("torch_topoopt", ("torch_topoopt",)),
    "plan": ApiPage(
        "Plan",
        (
            "torch_topoopt.plan.document",
            "torch_topoopt.plan.cluster",
            "torch_topoopt.plan.demand",
            "torch_topoopt.plan.network",
        ),
    ),
    "op_graph": ApiPage("OpGraph", ("torch_topoopt.op_graph",)),
    "profile": ApiPage("Profiles", ("torch_topoopt.profile.profiling",)),
    "planner": ApiPage(
        "Planner", ("torch_topoopt.planner.alternation", "torch_topoopt.planner.options")
    ),
    "topology": ApiPage("Topologies", ("torch_topoopt.topology.find_network",)),
    "architectures": ApiPage(
        "Architectures", ("torch_topoopt.architectures", "torch_topoopt.architectures.topology")
    ),
    "sim": ApiPage(
        "Simulators",
        ("torch_topoopt.sim", "torch_topoopt.sim.flows", "torch_topoopt.sim.iteration"),
    ),
    "parallel": ApiPage(
        "Parallel modules",
        (
            "torch_topoopt.parallel.api",
            "torch_topoopt.parallel.pipelines",
            "torch_topoopt.parallel.micro_batches",
        ),
    ),
    "ray_train": ApiPage("Ray Train", ("torch_topoopt.ray_train",)),
    "runtime": ApiPage(
        "Process groups",
        (
            "torch_topoopt.runtime.backend",
            "torch_topoopt.runtime.separate_groups",
            "torch_topoopt.runtime.metrics",
        ),
    ),
    "fabric": ApiPage(
        "Fabrics",
        (
            "torch_topoopt.fabric.driver",
            "torch_topoopt.links.wiring",
            "torch_topoopt.fabric.switches.switch",
        ),
    ),
    "models": ApiPage("Models", ("torch_topoopt.models",)),
}


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Puts the generated pages into the navigation, where it says `cli/` and `api/`."""
    for section in config.nav or []:
        for pages in section.values():
            for entry in pages if isinstance(pages, list) else []:
                for title, page in entry.items():
                    if page == "cli/":
                        entry[title] = [{verb: f"cli/{verb}.md"} for verb in _verbs()]
                    elif page == "api/":
                        entry[title] = [
                            {about.title: f"api/{name}.md"} for name, about in API.items()
                        ]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the generated pages."""
    texts = {place: _page_text(page) for page, place in ELSEWHERE.items()}
    texts |= {f"cli/{verb}.md": _verb_page(verb) for verb in _verbs()}
    texts |= {f"api/{name}.md": _api_page(about) for name, about in API.items()}
    texts["reference/errors.md"] = errors.error_page()
    for place, text in texts.items():
        files.append(File.generated(config, place, content=text))
    for plot, place in PLOTS.items():
        files.append(File.generated(config, place, abs_src_path=str(ROOT / plot)))
    moved = ELSEWHERE | PLOTS
    for name in sorted({target for target in _targets(files) if target not in moved}):
        files.append(File.generated(config, f"source/{name}.md", content=_source_page(name)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Fills in the measured results, and turns links to places of the repository into links to
    places of the site."""
    place = page.file.src_uri

    def moved(link: re.Match[str]) -> str:
        target, anchor = _target(place, link[1]), link[2] or ""
        if target is None:
            return link[0]
        if target.startswith("docs/"):
            there = target.removeprefix("docs/")
        else:
            there = (ELSEWHERE | PLOTS).get(target, f"source/{target}.md")
        return f"]({posixpath.relpath(there, posixpath.dirname(place) or '.')}{anchor})"

    linked = _LINK.sub(moved, with_table(markdown))
    return _FLOWCHART.sub(lambda found: f"<div>{flowchart.svg(found[1])}</div>\n", linked)


_FLOWCHART = re.compile(r"^```mermaid\n(.*?)^```$", re.M | re.S)
_LINK = re.compile(r"\]\((?!\w+:|#)([^)#\s]+)(#[^)\s]*)?\)")


def _target(place: str, link: str) -> str | None:
    """The file of the repository that a link on the page at `place` points to, if it is one."""
    origin = {there: page for page, there in ELSEWHERE.items()}.get(place, f"docs/{place}")
    target = posixpath.normpath(posixpath.join(posixpath.dirname(origin), link))
    return target if (ROOT / target).is_file() else None


def _targets(files: Files) -> Iterator[str]:
    """Files outside of docs/ that the pages point to."""
    for file in files.documentation_pages():
        for link in _LINK.finditer(file.content_string):
            target = _target(file.src_uri, link[1])
            if target is not None and not target.startswith("docs/"):
                yield target


def _page_text(name: str) -> str:
    text = (ROOT / name).read_text()
    if name != RESULTS:
        return text
    return results_page(json.loads(text)["rows"], FIGURES, ROOT / "figures")


def _verbs() -> list[str]:
    from torch_topoopt.launcher.main import VERBS

    return list(VERBS)


def _verb_page(verb: str) -> str:
    from torch_topoopt.launcher.completion import parser_of, sub_verbs_of
    from torch_topoopt.launcher.main import VERBS

    lines = [f"# topoopt {verb}", "", VERBS[verb].does[0].upper() + VERBS[verb].does[1:] + ".", ""]
    if sub_verbs := sub_verbs_of(verb):
        for name in sub_verbs:
            lines += [f"## topoopt {verb} {name}", "", *_help(parser_of(verb, name))]
            lines += _json_output(f"{verb} {name}")
    else:
        lines += [*_help(parser_of(verb)), *_json_output(verb)]
    return "\n".join(lines)


def _json_output(command: str) -> list[str]:
    """The JSON Schema of the output with --json, behind a line that opens it."""
    if command not in json_schemas.RESULTS:
        return []
    text = json.dumps(json_schemas.result_schema(command), indent=1)
    summary = (
        f"<summary>JSON Schema of the output of <code>topoopt {command} --json</code></summary>"
    )
    return ['<details markdown="1">', summary, "", "```json", text, "```", "", "</details>", ""]


def _help(options: argparse.ArgumentParser) -> list[str]:
    return ["```text", options.format_help().rstrip(), "```", ""]


def _api_page(about: ApiPage) -> str:
    return "\n".join([f"# {about.title}", "", *(f"::: {name}\n" for name in about.shows)])


def _source_page(name: str) -> str:
    text = (ROOT / name).read_text()
    if name.endswith(".md"):
        return text
    fence = "~~~~"
    language = {".py": "python", ".cc": "cpp", ".h": "cpp"}.get(os.path.splitext(name)[1], "text")
    return f"# {name}\n\n{fence}{language}\n{text}\n{fence}\n"
