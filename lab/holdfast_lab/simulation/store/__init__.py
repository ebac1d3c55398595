"""The fragment store under faults, in one process, on a clock of its own: one seed, one run."""
