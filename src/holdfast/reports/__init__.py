"""Reports of an outage and its recovery: one model from events, one renderer, for drills and for runs."""
