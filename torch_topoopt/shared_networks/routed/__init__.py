"""Training jobs on a leaf-spine network under a scheme of route control, at flow level.

Source: "Routing for Large ML Models", section 5. What its text leaves open is said in
docs/guides/routes.md.
"""
