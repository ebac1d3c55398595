"""The fragment store (A-FP4S): peers on a ring store the coded fragments of states.

`ring` is the overlay network, pure logic that real peers and the simulator drive alike. `wire` is the protocol between
clients and peers. `peer` stores fragments on disk, serves requests and repairs. `client` saves and loads states.
`agent` is the process beside an executor that moves snapshots between tasks and peers.
"""
