"""Whole runs under simulated faults, in one process, from one seed."""
