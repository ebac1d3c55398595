"""Checkers and faults for tests, drills and benches: ours and those of our users."""
