"""Random topologies by the recipes of the papers; one seed gives one topology, on any machine. Pure."""
