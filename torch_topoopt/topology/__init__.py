"""The Communication x Topology plane: chooses links, rings and routes for a given demand."""
