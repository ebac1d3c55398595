"""Sec. 5 of A-FP4S ("Adaptive Fragment-based Parallel State Recovery for Stream Processing Systems") beside ours.

`part` is what every figure comes down to: rows, and the paper's statements beside what we found. `simulated` runs the
ring of thousands of peers, `coding_costs` measures the code on this machine, `groups` lists them. Parts measured on
real peers (Fig. 9b, 10, 13) join by one more module and one more line in `groups`.
"""
