"""The fewest partitions whose outboxes guarantee a recovery latency (FTC). Pure."""
