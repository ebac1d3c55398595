"""`holdfast experiment segments`: the experiments of FastRecover, chapter 4, and ours beyond them."""
