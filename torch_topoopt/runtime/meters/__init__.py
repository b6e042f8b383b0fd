"""What ranks measure of a job while it trains."""
