"""Which partitions run twice, and how good the outputs are while partitions are down (PPA). Pure."""
