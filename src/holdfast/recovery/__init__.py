"""Recovery: one pure machine from events to effects. The simulator, one process and Spark drive the same (paper 000).

See `machine` for the path every failure takes, `states` for what a partition may go through, `rollback` for what must
go back with what has failed.
"""
