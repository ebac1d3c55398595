"""Pictures: topologies and plots. The only package that imports matplotlib; it needs no display. Runs on the driver."""
