"""Tables and training jobs as papers print them, and ours to compare with."""
