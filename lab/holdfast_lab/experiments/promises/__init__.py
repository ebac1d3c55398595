"""Promises of plans beside what was measured: every operator killed in turn under segment and backup plans."""
