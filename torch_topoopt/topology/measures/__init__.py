"""What a network is worth: hops, loads, bounds."""
