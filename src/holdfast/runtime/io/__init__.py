"""Source logs and sinks."""
