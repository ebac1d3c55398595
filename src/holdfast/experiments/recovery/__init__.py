"""Recovery from correlated failures on a real cluster: paper 000, Fig. 9 to 14, at this machine's scale."""
