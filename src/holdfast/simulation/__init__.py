"""Simulated clusters: the same machines as in real runs, driven by a fake clock in one process."""
