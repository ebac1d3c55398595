"""One joint plan from what users can say: intervals, segments, backups, fragments and replicas together. Pure."""
