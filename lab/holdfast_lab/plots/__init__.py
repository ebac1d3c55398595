"""Plots of the experiments' figures."""
