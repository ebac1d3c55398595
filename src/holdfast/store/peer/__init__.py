"""One peer: its fragments on disk, the requests it serves, repair."""
