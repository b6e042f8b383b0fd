"""Central route control for switched clusters: a controller assigns a path to each flow.

Source: "Routing for Large ML Models". The formulas that the paper's text has lost are in
docs/guides/routes.md, derived from its prose.
"""
