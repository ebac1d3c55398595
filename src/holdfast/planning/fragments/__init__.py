"""How many data and parity fragments a state gets, tuned as it runs (A-FP4S). Pure."""
