"""Drills: real faults on a real cluster, from a pure schedule, with a recorded history and checkers."""
