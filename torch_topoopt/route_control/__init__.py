"""Central route control for switched clusters: which path each flow takes, and who says so.

Source: "Routing for Large ML Models". The paper's text has lost its formulas;
docs/guides/routes.md has them as they follow from its prose.
"""
