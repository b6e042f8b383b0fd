"""The TopoOpt paper's evaluation: its figures and tables, computed and measured again.

    python benchmarks/figures                  all of them (`make figures`)
    python benchmarks/figures 11a 14 --quick   two of them, at small sizes
    python benchmarks/figures --list

A *cell* (`cell.Cell`) is one computation with its inputs: the name of a function, module:function,
and JSON parameters, seed included. Its result is a JSON row. Cells run in worker processes, or with
`--ray` as tasks of a Ray cluster, and rows are kept in `figures/cells/`, under a key of function,
parameters and the sources that can change the row. So a run that was stopped goes on where it was,
and several figures share cells.

A *figure* (`figure.Figure`) lists its cells, for full and for quick sizes, and makes of their rows
a CSV, a plot, and rows of one table: what the paper states, what is measured, and the reason where
they differ by more than 15 %. `results_page` makes a page of that table.

How a figure is added
---------------------
1. `cells/NAME.py`: functions that compute, from keyword parameters that JSON can hold to a row that
   JSON can hold. They draw nothing, keep nothing, and take randomness as `seed`. `DEPENDS_ON`, a
   tuple of paths of the repository, names what else can change their rows, where that is more than
   the simulation (`cell.SIMULATION`): the testbed adds "csrc" and "torch_topoopt". What such a
   module imports of this package is found by itself. Cells that measure time are `exclusive`.
2. `charts/NAME.py`: `FIGURES = (Figure(...), ...)`. `cells(quick)` gives `Cell.of("figures.cells.
   NAME:function", ..., seed=0)`; `make(results, quick)` gets each of these cells with its row and
   gives a `Made`: rows of the CSV, a function that draws on a matplotlib figure, and `Quantity`
   rows. The paper's numbers are there too, with the section they are from. Tables and jobs that
   several modules need are in `papers/`.
3. `registry.py`: the module's name, in the order of the paper.
4. `tests/benchmarks/test_figures_benchmark.py` runs every figure's quick cells;
   docs/planning/figures.md describes it.

A cell that fails or takes longer than its `limit_s` costs the figures that need it, with a line; it
is not kept. `python benchmarks/figures NAME --quick --jobs 1` is the shortest way to try one.
"""
