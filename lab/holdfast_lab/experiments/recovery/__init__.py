"""Recovery from correlated failures on a real cluster: incremental recovery, Fig. 9 to 14, at this machine's scale."""
