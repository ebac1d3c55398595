"""Measurements of this machine: time, memory, ratios."""
