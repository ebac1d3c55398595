"""`holdfast experiment segments`: chapter 4 of paper 004 (FastRecover) and what it left undone, one module a part."""
