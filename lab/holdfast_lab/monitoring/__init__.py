"""The Grafana dashboard and alert rules of `monitoring/`, as tables; `tools/make_monitoring.py` writes the files."""
