"""Saving and retrieving states as fragments."""
