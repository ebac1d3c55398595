"""Tentative outputs: how good they are, how soon they begin, and what being ready costs (PPA, Fig. 7 to 10, 12, 13)."""
