"""Rings of thousands of peers in one process."""
