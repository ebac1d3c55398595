"""The driver's side of a run: desired state out, reports in, outputs to the sinks."""
