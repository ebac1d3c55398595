"""The ring of peers: ids, leaf sets, routing, placement of fragments. The ring itself is a pure machine."""
