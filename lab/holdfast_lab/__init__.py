"""What reproduces the papers and compares Holdfast with others: experiments, benches, baselines. Not in the wheel."""
