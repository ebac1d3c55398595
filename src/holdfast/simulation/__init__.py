"""Failures of large clusters, simulated by a cost model: the recovery machine decides, no rows are processed."""
