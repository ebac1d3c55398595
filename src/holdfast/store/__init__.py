"""Peers and fragments (A-FP4S): where the fragments of a state live, and how they are found again.

The ring is pure logic, driven alike by real peers and by the simulator: `ring_ids` (names on the ring), `leaf_set` and
`routing_table` (what a peer knows), `ring_messages` and `ring_wire` (what peers say), `ring` (the machine), `placement`
(who holds what).
"""
