"""The papers' experiments and our benches: computing that returns data; commands print and write it."""
