"""The Communication x Topology plane: which links, rings and routes serve a given demand."""
