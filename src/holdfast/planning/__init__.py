"""Plans: a snapshot goes in, what to do about failure comes out. Pure; runs anywhere."""
