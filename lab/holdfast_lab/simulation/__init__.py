"""Simulators that test Holdfast itself: its own code on a fake clock in one process, under faults, seed by seed."""
