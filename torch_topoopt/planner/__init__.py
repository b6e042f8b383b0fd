"""Planning of strategy, network and routes together: rounds of search and TopologyFinder."""
