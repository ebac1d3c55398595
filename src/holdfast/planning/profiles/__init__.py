"""Profiles: what a run measured, over a sliding period, as a topology file that every planner takes. Pure."""
