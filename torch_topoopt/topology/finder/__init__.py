"""TopologyFinder as the paper and its artifact have it, step by step; rings on given cables."""
