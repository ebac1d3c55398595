"""The agent beside a node's executor: its peer, and the spool through which tasks hand it snapshots."""
