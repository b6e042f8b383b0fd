"""TopologyFinder by the paper and by its artifact, step by step; rings on given cables."""
