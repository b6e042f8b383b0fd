"""Training scripts that are installed with the package; each is a link to one of examples/."""
