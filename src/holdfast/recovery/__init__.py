"""Recovery: one pure machine from events to effects. Spark, one process and the simulator drive it.

See `machine` for the path every failure takes, `states` for what a partition may go through, `rollback` for what must
roll back with what has failed.
"""
