"""Tables and training jobs of the papers, with our values to compare."""
