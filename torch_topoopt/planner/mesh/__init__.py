"""Planning on a network of rows and columns: the strategy, and its placement on the grid."""
