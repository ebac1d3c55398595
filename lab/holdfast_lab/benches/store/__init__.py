"""`holdfast bench store`: the code against memory copy and bare pyeclib, and saves and restores against a remote file.

`coding` measures the code alone; `transfer` runs rings of real peers and a client that is a process of its own
(`client_process`), so that CPU and memory of both sides are measured separately.
"""
