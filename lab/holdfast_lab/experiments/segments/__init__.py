"""`holdfast experiment segments`: chapter 4 of FastRecover (FastRecover) and what it left undone, one module a part."""
