"""Measurements that ranks make of a job while it trains."""
