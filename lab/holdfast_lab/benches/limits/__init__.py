"""How far operators, exchange and state are from what the machine can do: plain Arrow, a copy in memory, a plain write.

All in one process or on loopback, without a cluster. Figures are CPU seconds of this process, with its threads and the
kernel's work for it, so that other work on the machine hardly changes them; a ratio is within one turn.
"""
