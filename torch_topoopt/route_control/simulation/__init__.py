"""Training jobs on a leaf-spine network under a scheme of route control, at flow level.

Source: "Routing for Large ML Models", section 5. docs/routes.md says what its text leaves open.
"""
