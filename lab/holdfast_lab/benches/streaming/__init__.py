"""Benches of running applications: rows per second, the price of being ready, cost per batch."""
