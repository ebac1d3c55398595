"""The live page of a run: what its event log says, folded into a view, and a small HTTP server that shows it.

`view_model`, `recovery_record`, `estimate`, `notices` and `view` are pure: events in, one JSON document out.
`event_reader` follows a run's event file, `server` answers requests; both run beside the driver or in `holdfast
dashboard`.
"""
