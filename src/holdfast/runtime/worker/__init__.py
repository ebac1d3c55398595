"""A node's side of a run: it reconciles with the desired state, processes batches and takes snapshots."""
