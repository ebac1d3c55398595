"""The agent process of a node: its peer, and the spool folder through which tasks save and fetch snapshots."""
