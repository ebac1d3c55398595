"""The state of partitions: versions on a node's disk, snapshots, and where snapshots are stored."""
