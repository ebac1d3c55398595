"""Algorithms of the papers as printed, loop by loop: slow, for comparison."""
