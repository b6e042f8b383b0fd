"""The computations of figures: from JSON parameters to JSON rows."""
