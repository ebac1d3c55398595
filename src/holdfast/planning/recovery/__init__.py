"""Which lost partitions come back first, on which node, as nodes arrive (incremental recovery). Pure."""
