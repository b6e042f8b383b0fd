"""Strategy, network and routes together: rounds of search and TopologyFinder; their outcome."""
