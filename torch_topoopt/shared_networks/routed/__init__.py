"""Training jobs on a leaf-spine network under a scheme of route control, at flow level.

Source: "Routing for Large ML Models", section 5. For choices that its text leaves open see
docs/guides/routes.md.
"""
